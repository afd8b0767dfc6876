"""Side by side with peers and with ourselves: run by hand, never as tests. Each file says what it prints."""
