"""The operators that swap inserts; what they do is in ``runtime``."""

from __future__ import annotations

import torch

from ...runtime import ops as ops  # registers them

OFFLOAD = torch.ops.memopt.offload.default
"""``(value, name, store, directory, in_flight_bytes, host_limit, asynchronous) -> ticket``"""
PREFETCH = torch.ops.memopt.prefetch.default
"""``(ticket) -> token``"""
WAIT = torch.ops.memopt.wait.default
"""``(token, size, stride, dtype, device) -> value``"""
