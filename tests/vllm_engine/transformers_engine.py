"""An engine that is asked as Triton's vLLM backend is, and is transformers on the CPU.

It is started with the folder and the arguments of model.json, as vLLM is. Run as a program it takes
a request a line and answers with a message a line, for a Python without torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer

from tests.vllm_engine.rule import BackendError, Message, check


class TransformersEngine:
    def __init__(self, arguments: Mapping[str, Any]) -> None:
        folder = Path(arguments["model"])
        assert folder.is_absolute(), folder
        assert arguments["load_format"] == "safetensors"
        self._positions = int(arguments["max_model_len"])
        loader: Any = transformers.AutoModelForCausalLM
        self._model = loader.from_pretrained(
            folder, dtype=getattr(torch, arguments["dtype"]), use_safetensors=True
        ).eval()
        self._model.generation_config = transformers.GenerationConfig()
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def messages(
        self, inputs: Mapping[str, Any], gone: Callable[[], bool], note: Callable[[str], None]
    ) -> Iterator[Message]:
        """A message a token. Raises BackendError."""
        try:
            told = check(inputs)
            prompt = self._tokenizer.encode(inputs["text_input"]).ids
            if len(prompt) >= self._positions:
                raise ValueError("the prompt is longer than the maximum model length")
            found = self._continued(prompt, told)
        except (AssertionError, KeyError, ValueError) as error:
            raise BackendError(f"Error generating stream: {error!r}") from error
        for at, (token, logprob) in enumerate(found, 1):
            last = at == len(found)
            stopped = token in told["stop_token_ids"]
            row = {token: {"logprob": logprob, "rank": 1, "decoded_token": "never read"}}
            outputs = {
                "text_output": "never read",
                "finish_reason": ("stop" if stopped else "length") if last else "None",
                "logprobs": json.dumps([row]),
                "num_input_tokens": len(prompt),
                "num_output_tokens": 1,
            }
            yield Message(outputs, last)
            if not last and gone():
                note(f"cancelled {at}")
                return
        note(f"ended {len(found)}")

    def _continued(self, prompt: list[int], told: Mapping[str, Any]) -> list[tuple[int, float]]:
        config = transformers.GenerationConfig(
            max_new_tokens=told["max_tokens"],
            min_new_tokens=told.get("min_tokens"),
            do_sample=False,
            eos_token_id=told["stop_token_ids"] or None,
            pad_token_id=0,
            repetition_penalty=told["repetition_penalty"],
            return_dict_in_generate=True,
            output_logits=True,
        )
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            found = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config
            )
        new = found.sequences[0, len(prompt) :]
        scores = torch.cat(found.logits).float().log_softmax(dim=-1)
        return list(zip(new.tolist(), scores.gather(1, new[:, None])[:, 0].tolist(), strict=True))


def main() -> None:
    engine = TransformersEngine(json.loads(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            for message in engine.messages(request["inputs"], lambda: False, lambda what: None):
                _say(request["id"], outputs=message.outputs, last=message.last)
        except BackendError as error:
            _say(request["id"], fault=str(error))


def _say(identity: str, **what: Any) -> None:
    sys.stdout.write(json.dumps({"id": identity, **what}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
