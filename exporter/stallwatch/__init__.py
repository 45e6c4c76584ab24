"""Stallwatch tells an LLM inference server that has silently hung from one that is idle, slow or still starting."""

__version__ = "0.1.0"
