"""Stands in for SGLang's kernels."""

import cuda_only
import torch

# A newer torch has this question elsewhere, and SGLang asks it here; no AMX means plain torch.
if not hasattr(torch._C._cpu, "_is_amx_tile_supported"):
    torch._C._cpu._is_amx_tile_supported = lambda: False

cuda_only.stand_in(__name__)
