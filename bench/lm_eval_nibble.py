# SPDX-License-Identifier: Apache-2.0
"""Nibble as a model of lm-evaluation-harness 0.4.13: the harness makes tasks, texts, tokens and
scores; `nibble eval loglikelihood` answers the requests, all of a call in one process."""
import json
import subprocess
import tempfile

from lm_eval.api.model import TemplateLM
from tokenizers import Tokenizer


class NibbleLM(TemplateLM):
    def __init__(self, nibble, model, options=()):
        super().__init__()
        self.command = [str(nibble), "eval", "loglikelihood", str(model), "--json", *options]
        self.encoder = Tokenizer.from_file(f"{model}/tokenizer.json")

    @property
    def eot_token_id(self):
        return self.encoder.encode("").ids[0]  # BOS: what an empty context becomes

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        return self.encoder.encode(string, add_special_tokens=add_special_tokens is not False).ids

    def _loglikelihood_tokens(self, requests, **kwargs):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for _, context, continuation in requests:
                print(json.dumps({"context": context, "continuation": continuation}), file=file)
            file.flush()
            answers = subprocess.run([*self.command, "--requests", file.name], check=True,
                                     stdout=subprocess.PIPE).stdout
        return [(a["log_likelihood"], a["is_greedy"]) for a in json.loads(answers)]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError("no task of eval tasks asks for it; see `nibble eval ppl`")

    def generate_until(self, requests, disable_tqdm=False):
        raise NotImplementedError("no task of eval tasks asks for it")
