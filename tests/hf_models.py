"""Tiny Hugging Face models with random weights, and a byte-level tokenizer that fits them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from comparing import TEXT

N_IDS = 400
"""Of the tokenizer; the models have some more, padded ones."""

SIZES = {
    "vocab_size": N_IDS + 8,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


def _llama(transformers: Any) -> Any:
    return transformers.LlamaConfig(**SIZES)


def _qwen3(transformers: Any) -> Any:
    return transformers.Qwen3Config(**SIZES, head_dim=16)


def _gemma3(transformers: Any) -> Any:
    return transformers.Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": 4},
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )


def _gemma2(transformers: Any) -> Any:
    """Scores are capped softly, low enough to matter."""
    return transformers.Gemma2Config(
        **SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=6, attn_logit_softcapping=0.5
    )


def _gpt2(transformers: Any) -> Any:
    return transformers.GPT2Config(
        vocab_size=N_IDS + 8, n_embd=64, n_layer=3, n_head=4, n_positions=512, bos_token_id=0, eos_token_id=1
    )


def _gpt_oss(transformers: Any) -> Any:
    """Attention with sinks, sliding windows, and experts."""
    return transformers.GptOssConfig(
        **{**SIZES, "num_hidden_layers": 2},
        head_dim=16,
        sliding_window=6,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_scaling={"rope_type": "default"},
    )


def _llama_dynamic(transformers: Any) -> Any:
    """Beyond 64 tokens it would turn positions in another way."""
    return transformers.LlamaConfig(
        **{**SIZES, "max_position_embeddings": 64}, rope_scaling={"rope_type": "dynamic", "factor": 4.0}
    )


def _lfm2(transformers: Any) -> Any:
    """Attention in one layer; the others mix neighbours."""
    return transformers.Lfm2Config(**SIZES, full_attn_idxs=[1])


def _bert(transformers: Any) -> Any:
    """Attention in both directions."""
    return transformers.BertConfig(
        vocab_size=N_IDS + 8, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96
    )


def _mamba(transformers: Any) -> Any:
    """No attention at all."""
    return transformers.MambaConfig(
        vocab_size=N_IDS + 8, hidden_size=32, state_size=8, num_hidden_layers=2, bos_token_id=0, eos_token_id=1
    )


def _bloom(transformers: Any) -> Any:
    """Attention that does not go by transformers' common interface."""
    return transformers.BloomConfig(
        vocab_size=N_IDS + 8, hidden_size=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1
    )


CONFIGS: dict[str, Callable[[Any], Any]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "gemma2": _gemma2,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
    "llama_dynamic": _llama_dynamic,
    "lfm2": _lfm2,
    "bert": _bert,
    "mamba": _mamba,
    "bloom": _bloom,
}
"""Name -> its configuration, from transformers."""


def write_model(name: str, folder: Path, change: Callable[[Any], None] = lambda model: None) -> Path:
    """A folder with such a model, as `save_pretrained` leaves one."""
    import torch
    import transformers

    config = CONFIGS[name](transformers)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:  # else all it says of a token would be that it is like the one before
                    parameter.normal_(0, 2.5 / parameter.shape[-1] ** 0.5)
    change(model)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def tokenizer() -> Any:
    """Byte-level BPE over the tests' text, with a beginning and an end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_IDS,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
