"""The diffusion process: how pictures become noise, what a network learns about it, and the way back.

One vocabulary for the whole project:

| name | meaning |
| --- | --- |
| `x_0`, `x_t` | clean picture in [-1, 1] and noised picture `alpha * x_0 + sigma * eps`, (B, 3, H, W) float32 |
| `t` | time in [0, 1], float64: 1 = noise, 0 = clean. Timestep i of a discrete schedule is t = (i + 1) / T |
| `alpha`, `sigma` | coefficients of signal and noise at t. `vp`: alpha^2 + sigma^2 = 1; `flow`: alpha + sigma = 1 |
| `log_snr` | log(alpha^2 / sigma^2), falls with t: what the network is told about the noise level |
| `num_train_timesteps`, `betas`, `alphas_cumprod` | T and the tables of a discrete schedule, float64 |
| `timestep_shift` | s: the constant -2 log(s) on log_snr, for larger pictures (not the spatial shift) |
| `eps`, `x0`, `v`, `velocity` | what a network predicts; see forward.py |
| `denoise(x_t, t)` | callable that gives the estimate of x_0: all a sampler ever sees |
| `guidance_scale` | u + scale * (c - u); 1 = plain conditional prediction |
"""
