#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small_tokenizers.json: what the packages that define the formats make of small tokenizers.

Run with tokenizers 0.23, sentencepiece 0.2 and tiktoken 0.14 installed. Every case is a file (a
tokenizer.json, a tokenizer.model in base64, or a file of ranks) with texts, their ids and what
these decode to. The files are trained here on a few lines, so that they stay small (BPE not
repeatably, by the package: each file that comes out is as good as another); a table of
normalizations is trained into some.
"""
import base64
import contextlib
import io
import json
import pathlib
import tempfile
import unicodedata

import sentencepiece
import tiktoken
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers

HERE = pathlib.Path(__file__).resolve().parent
TRAINING = """The quick brown fox jumps over the lazy dog, and the dog does not mind it at all.
Numbers like 1, 23, 456 and 7890 stand in texts; so do dates (2024-05-06) and sums: 12 + 30 = 42.
def add(a, b): return a + b  # code
Grüße aus Zürich: l'été à Paris, mañana en España. Ähnlich übel ist es in Österreich.
It isn't what it's made of, they're told; we'll see. I do not know what I'd say!
lower lowest newer newest wider widest the other one or another of the others in there
日本語の文章と中文的句子。 Пример текста на русском языке. """.split("\n")
TEXTS = [
    "", " ", "   ", "a", "the dog", " the dog", "the  dog ", "The Quick BROWN fox", "it isn't, they're",
    "Grüße, l'été\u0301 à", "e\u0301a\u0323\u0301 ﬁne Ⅷ ① ½ Å", "日本語 と 中文。x", "1234567 12,345.67",
    "tabs\tand\nlines\r\nand\u00a0more\u3000spaces\u200b!", "a\u0000b\u0007c\u0085d\u2028e\u00adf", "▁the▁ dog▁",
    "\ufeffbom \ufffd \u180e", "İSTANBUL ẞ ΑΣ", "👩‍👩‍👧 🇩🇪 ✌🏽", "<s>the</s> dog<unk> <sep>one<sep> two", "<0x41> <0xE2>",
    "xyz qqq ☃☃ zz", "x-y--z -", "don ' t do not stop .", "newest lowest", "(a+b)*c==[d]{e}|~`^$", "the\n\nthe",
    "the other of the others", "of the   of the", "한국어 각 각", "ｶﾞ ＡＢＣ １２３", "नमस्ते กำ"]

RULES = [("ﬁ", "fi"), ("½", "1/2"), ("A\u030a", "Å"), ("e\u0301", "é"), ("\u3000", " "), ("\t", " "),
         ("\n", " "), ("\u00a0", " "), ("①", "1"), ("\u200b", ""), ("\ufeff", ""), ("Ａ", "A"), ("…", "..."),
         ("ｶﾞ", "ガ"), ("ｶ", "カ"), ("1,", "<"), ("1,2", ">"), ("\u0007", "  ")]


def train(size, **options):
    """A SentencePiece model, with RULES unless another normalization is named."""
    file = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if "normalization_rule_name" not in options:  # the model remembers the file's name
            options["normalization_rule_tsv"] = "rules.tsv"
            pathlib.Path("rules.tsv").write_text("".join(
                "\t".join(" ".join(f"{ord(c):X}" for c in text) for text in rule) + "\n"
                for rule in RULES))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TRAINING * 3), model_writer=file, vocab_size=size,
            minloglevel=2, hard_vocab_limit=False, **options)
    return file.getvalue()


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """Of a protobuf message: number, value."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        elif key & 7 == 5:
            value, at = data[at:at + 4], at + 4
        else:
            value, at = varint(data, at)
        yield key >> 3, value


def charsmap(model):
    spec = dict(fields(model))[3]
    return dict(fields(spec))[2]


def documents():
    model = train(300, character_coverage=0.98)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocab = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(pieces.get_piece_size())]
    vocab += [(t, -7.5) for t in ("newest", "☃☃☃")]
    bytes_ = [(f"<0x{b:02X}>", 0.0) for b in range(256)]
    n, p, d = normalizers, pre_tokenizers, decoders
    frame = processors.TemplateProcessing(single="$A </s>", pair="$A $B", special_tokens=[("</s>", 2)])

    def unigram(normalizer, pre_tokenizer, decoder, post=None, byte_fallback=False):
        t = Tokenizer(models.Unigram(vocab + (bytes_ if byte_fallback else []), 0, byte_fallback))
        for name, part in (("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer),
                           ("decoder", decoder), ("post_processor", post)):
            if part is not None:
                setattr(t, name, part)
        t.add_special_tokens(["<unk>", "<s>", "</s>"])
        return t

    yield "unigram_precompiled", unigram(
        n.Precompiled(charsmap(model)), p.Sequence([p.WhitespaceSplit(), p.Metaspace()]), d.Metaspace(), frame)
    yield "unigram_bytes", unigram(
        n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")]), None,
        d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)]), byte_fallback=True)
    yield "unigram_steps", unigram(
        n.Sequence([n.Replace("``", '"'), n.NFKD(), n.StripAccents(), n.Lowercase(),
                    n.Replace(Regex(" {2,}"), " "), n.Strip(left=False)]),
        p.Metaspace(prepend_scheme="never"), d.Metaspace(prepend_scheme="never"))
    yield "unigram_nmt", unigram(
        n.Sequence([n.Nmt(), n.NFKC(), n.Strip()]), p.Sequence([p.Whitespace(), p.Metaspace()]),
        d.WordPiece())
    yield "unigram_bert", unigram(n.BertNormalizer(), p.BertPreTokenizer(), d.WordPiece(cleanup=False),
                                  processors.BertProcessing(("</s>", 2), ("<s>", 1)))
    yield "unigram_lengths", unigram(
        n.BertNormalizer(strip_accents=False, handle_chinese_chars=False),
        p.Sequence([p.CharDelimiterSplit("-"), p.Digits(), p.Punctuation("merged_with_previous"),
                    p.FixedLength(5)]), None)

    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    t.normalizer, t.pre_tokenizer, t.decoder = n.Lowercase(), p.Whitespace(), d.BPEDecoder()
    t.train_from_iterator(TRAINING, trainers.BpeTrainer(
        vocab_size=250, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False))
    yield "bpe_suffix", t
    t = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True))
    t.normalizer, t.pre_tokenizer, t.decoder = n.NFD(), p.WhitespaceSplit(), d.WordPiece()
    t.train_from_iterator(TRAINING, trainers.BpeTrainer(
        vocab_size=250, special_tokens=["<unk>"], continuing_subword_prefix="##", show_progress=False))
    yield "bpe_prefix", t


def sentencepiece_models():
    yield "unigram", train(250, character_coverage=0.98)
    yield "unigram_bytes", train(500, byte_fallback=True, normalization_rule_name="identity",
                                 remove_extra_whitespaces=False)
    yield "unigram_user_defined", train(
        500, byte_fallback=True, add_dummy_prefix=False,
        user_defined_symbols=["<sep>", "\n", "of the", "▁▁▁"])
    yield "unigram_across_words", train(250, split_by_whitespace=False, remove_extra_whitespaces=False)
    yield "bpe", train(250, model_type="bpe", character_coverage=0.98)
    yield "bpe_bytes", train(500, model_type="bpe", byte_fallback=True, split_digits=True,
                             normalization_rule_name="identity", remove_extra_whitespaces=False)
    yield "bpe_user_defined", train(500, model_type="bpe", byte_fallback=True,
                                    user_defined_symbols=["<sep>", "\n", "est", "é"])
    yield "bpe_no_prefix", train(250, model_type="bpe", add_dummy_prefix=False, character_coverage=0.98)


# As published with the models.
PATTERNS = {
    "llama": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"}


def rank_files():
    """Ranks that a byte-level BPE trained here gives, and some that no merge makes."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(TRAINING, trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    vocab = sorted(t.get_vocab().items(), key=lambda item: item[1])
    alphabet = {pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(
        chr(b))[0][0]: b for b in range(128)}
    alphabet |= {c: b for b, c in zip(
        [b for b in range(128, 256) if not (161 <= b <= 172 or 174 <= b <= 255)],
        [chr(0x100 + 33 + 1 + i) for i in range(34)])}
    for b in [*range(161, 173), *range(174, 256)]:
        alphabet[chr(b)] = b
    tokens = [bytes(alphabet[c] for c in token) for token, _ in vocab] + [b" lazyish", "日本".encode()]
    for family, pattern in PATTERNS.items():
        e = tiktoken.Encoding(family, pat_str=pattern, special_tokens={},
                              mergeable_ranks={token: i for i, token in enumerate(tokens)})
        lines = "".join(f"{base64.b64encode(token).decode()} {i}\n" for i, token in enumerate(tokens))
        texts = [t for t in TEXTS if unicodedata.is_normalized("NFC", t)]  # Qwen normalizes before
        ids = [e.encode(text) for text in texts]
        yield {"name": family, "ranks": lines, "texts": texts, "ids": ids,
               "decoded": [e.decode(i) for i in ids]}


def main():
    cases = []
    for name, t in documents():
        ids = [t.encode(text).ids for text in TEXTS]
        cases.append({"name": name, "tokenizer": json.loads(t.to_str()), "ids": ids,
                      "decoded": [t.decode(i, skip_special_tokens=True) for i in ids]})
    pieces = []
    for name, model in sentencepiece_models():
        p = sentencepiece.SentencePieceProcessor(model_proto=model)
        # Text that names control tokens is text there.
        texts = [t for t in TEXTS if "<s>" not in t]
        ids = [p.encode(text) for text in texts]
        pieces.append({"name": name, "model": base64.b64encode(model).decode(), "texts": texts, "ids": ids,
                       "decoded": [p.decode(i) for i in ids]})
    text = json.dumps({"texts": TEXTS, "documents": cases, "sentencepiece": pieces,
                       "ranks": list(rank_files())}, ensure_ascii=False, separators=(",", ":"))
    (HERE / "small_tokenizers.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
