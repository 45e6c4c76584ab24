"""Stands in for torchvision, whose wheel does not load beside a torch for CPUs; a text model needs none of it."""

import cuda_only

cuda_only.stand_in(__name__)
