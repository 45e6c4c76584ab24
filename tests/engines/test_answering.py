"""What an answer proves goes by engine, path and version; each engine has a way to be asked for one token."""

from dataclasses import replace

import pytest

from readings import a_server
from stallwatch.engines.answering import asks_scheduler, token_request


@pytest.mark.parametrize(
    ("path", "version", "asks"),
    [
        ("/health", "0.4.10", False),
        ("/health", "0.4.10.post2", True),
        ("/health", "v0.5.9", True),
        ("/health", "", True),
        ("/health_generate", "0.4.3.post3", False),
        ("/health_generate", "0.4.3.post4", True),
        ("/get_model_info", "0.5.9", False),
    ],
)
def test_from_which_version_on_the_scheduler_is_asked(path, version, asks):
    """A version that is not known is taken for a new one."""
    assert asks_scheduler(replace(a_server(), version=version), path) is asks


def test_who_has_no_scheduler_to_ask():
    """The web process of vLLM, or of a worker node, answers by itself."""
    server = replace(a_server(), version="0.5.9")
    assert not asks_scheduler(replace(server, engine="vllm"), "/health")
    assert not asks_scheduler(replace(server, launch=replace(server.launch, worker=True)), "/health")


def test_one_token_is_asked_of_each_engine_in_its_way():
    """That to vLLM names the model."""
    server = a_server()
    path, body = token_request(server)
    assert (path, body["sampling_params"]["max_new_tokens"]) == ("/generate", 1)
    path, body = token_request(replace(server, engine="vllm", launch=replace(server.launch, model="kimi")))
    assert (path, body["model"], body["max_tokens"]) == ("/v1/completions", "kimi", 1)
