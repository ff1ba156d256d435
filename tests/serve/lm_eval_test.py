#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness against `nibble serve`, compared with `nibble eval` on the same model.

lm_eval_test.py --nibble PROGRAM --model MODEL --data DIRECTORY [--count N]
DIRECTORY has piqa.jsonl, winogrande.jsonl, arc_easy.jsonl and lambada_openai.jsonl
(docs/benchmarks.md). Both sides compute in fp32 (`--load-bits 32`), or what a quantized checkpoint
says. Exits with 77 and says so where the harness is not installed: pip install "lm_eval[api]"
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from nibble_server import Server

LIMIT = 1e-6  # Largest difference of two log-likelihoods.
TASK_LIMIT = 40  # Questions of a whole task.
PIQA = """task: nibble_piqa
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{query}}}}Answer:"
doc_to_choice: choices
doc_to_target: gold
metric_list:
  - {{metric: acc}}
  - {{metric: acc_norm}}
"""


def rows(data, task):
    with open(data / f"{task}.jsonl") as lines:
        yield from map(json.loads, lines)


def pairs_of(data, count):
    """(context, continuation) of four tasks in turn; questions with one context are neighbours."""
    def questions(task):
        for row in rows(data, task):
            if task == "lambada_openai":
                yield [(row["context"], " " + row["continuation"])]
            elif task == "winogrande":
                yield [(c, " " + row["continuation"]) for c in row["context_options"]]
            else:
                end = "Answer:" if task == "piqa" else "\nAnswer:"
                yield [(row["query"] + end, " " + choice) for choice in row["choices"]]

    sources = [questions(t) for t in ("piqa", "winogrande", "arc_easy", "lambada_openai")]
    pairs = []
    while len(pairs) < count:
        for source in sources:
            pairs += next(source)
    return pairs[:count]


def nibble_answers(options, pairs):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for context, continuation in pairs:
            file.write(json.dumps({"context": context, "continuation": continuation}) + "\n")
        file.flush()
        # The harness asks for token ids without special tokens.
        command = [options.nibble, "eval", "loglikelihood", options.model, "--no-bos", "--json",
                   "--requests", file.name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [(row["log_likelihood"], row["is_greedy"]) for row in json.loads(done.stdout)]


def harness(server, kind, path, **options):
    from lm_eval.models import openai_completions
    return getattr(openai_completions, kind)(base_url=server.url + path, model=server.name,
                                             max_length=1024, **options)


def instances(kind, arguments):
    from lm_eval.api.instance import Instance
    return [Instance(request_type=kind, doc={}, arguments=a, idx=i)
            for i, a in enumerate(arguments)]


def compare(server, pairs, expected, name, **options):
    lm = harness(server, "LocalCompletionsAPI", "/v1/completions", **options)
    if lm.tokenizer_backend != "remote":
        raise AssertionError("the harness did not find the server's tokenizer")
    start = time.monotonic()
    got = lm.loglikelihood(instances("loglikelihood", pairs))
    seconds = time.monotonic() - start
    differences = [abs(g[0] - e[0]) for g, e in zip(got, expected, strict=True)]
    greedy = sum(g[1] != e[1] for g, e in zip(got, expected))
    print(f"{name}: {len(got)} requests in {seconds:.0f} s, largest difference "
          f"{max(differences):.3g}, {greedy} other greedy flags", flush=True)
    return max(differences) <= LIMIT and greedy == 0


def check_task(options, server):
    """A task of the harness has the score that `nibble eval tasks` gives."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager
    with tempfile.TemporaryDirectory() as directory:
        path = (options.data / "piqa.jsonl").resolve()
        (pathlib.Path(directory) / "nibble_piqa.yaml").write_text(PIQA.format(path=path))
        manager = TaskManager(include_path=directory, include_defaults=False)
        scores = simple_evaluate(
            model="local-completions", tasks=["nibble_piqa"], limit=TASK_LIMIT,
            model_args={"base_url": server.url + "/v1/completions", "model": server.name,
                        "max_length": 1024, "num_concurrent": 8},
            task_manager=manager, bootstrap_iters=0)["results"]["nibble_piqa"]
    command = [options.nibble, "eval", "tasks", options.model, "--no-bos", "--json", "--tasks",
               "piqa", "--data", str(options.data), "--limit", str(TASK_LIMIT)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    ours = json.loads(done.stdout)[0]
    theirs = {m: scores[m + ",none"] for m in ("acc", "acc_norm")}
    print(f"piqa, {TASK_LIMIT} questions: the harness has {theirs}, nibble eval tasks "
          f"{ {m: ours[m] for m in theirs} }", flush=True)
    return all(abs(ours[m] - theirs[m]) < 1e-9 for m in theirs)


def check_generation(server, pairs):
    """generate_until through both APIs: greedy, alone and eight at once, until a stop text."""
    contexts = [c for c, _ in pairs[:8]]
    rules = {"until": ["\n\n", "Question:"], "max_gen_toks": 24, "do_sample": False}
    texts = []
    for concurrent in (1, 8):
        lm = harness(server, "LocalCompletionsAPI", "/v1/completions", num_concurrent=concurrent)
        texts.append(lm.generate_until(instances("generate_until",
                                                 [(c, dict(rules)) for c in contexts])))
    chat = harness(server, "LocalChatCompletion", "/v1/chat/completions", num_concurrent=8)
    arguments = [(chat.apply_chat_template([{"role": "user", "content": c}]), dict(rules))
                 for c in contexts]
    answers = chat.generate_until(instances("generate_until", arguments))
    print(f"generate_until: {texts[0][0]!r}, in a chat: {answers[0]!r}", flush=True)
    stopped = not any(stop in text for text in texts[0] + answers for stop in rules["until"])
    return texts[0] == texts[1] and stopped and len(answers) == 8 and any(answers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nibble", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, type=pathlib.Path)
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    try:
        import lm_eval
    except ImportError:
        print("lm_eval is not installed")
        return 77
    print("lm_eval", getattr(lm_eval, "__version__", "?"))
    pairs = pairs_of(options.data, options.count)
    expected = nibble_answers(options, pairs)
    with Server(options.nibble, options.model, "--load-bits", "32") as server:
        results = [
            compare(server, pairs, expected, "one by one"),
            compare(server, pairs, expected, "batches of 4", batch_size=4),
            compare(server, pairs, expected, "8 at once", num_concurrent=8),
            check_task(options, server),
            check_generation(server, pairs),
        ]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed, 0 skipped")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
