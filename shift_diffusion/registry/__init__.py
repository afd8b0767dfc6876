"""The model registry: every trained model is one version, one of them is champion, and each decision has a reason."""

from shift_diffusion.registry.aliases import decisions, promote, rollback
from shift_diffusion.registry.gate import Candidate, Decision, gate
from shift_diffusion.registry.versions import Version, list_versions

__all__ = ["Candidate", "Decision", "Version", "decisions", "gate", "list_versions", "promote", "rollback"]
