"""Writes a Llama of two layers with random weights, and a tokenizer for it: `tiny_model.py DIRECTORY`.

It talks nonsense, and does so as fast as a CPU allows.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 512
CONTEXT = 2048
SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
TEXT = "A server that hangs says nothing, and one that is idle says nothing either."


def tokenizer():
    """Return a byte-level tokenizer, learnt from one sentence."""
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=WORDS, special_tokens=list(SPECIAL.values()), initial_alphabet=alphabet)
    plain.train_from_iterator([TEXT] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=plain, model_max_length=CONTEXT, **SPECIAL)


def model(known):
    """Return the model for a tokenizer; two key-value heads, so that two ranks can share it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=known.bos_token_id,
        eos_token_id=known.eos_token_id,
        pad_token_id=known.pad_token_id,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    words = tokenizer()
    words.save_pretrained(sys.argv[1])
    model(words).save_pretrained(sys.argv[1])
