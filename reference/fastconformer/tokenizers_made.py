"""Small SentencePiece BPE models and the tokenizer.json that the published conversion makes of them."""

import io
from pathlib import Path

import sentencepiece as spm
from tokenizers import AddedToken
from transformers import ParakeetTokenizer
from transformers.convert_slow_tokenizer import ParakeetConverter

TEXT = """the quick brown fox jumps over the lazy dog
she sells sea shells by the sea shore
what did he say to you, and how did it end?
they call it a small speech engine. it runs fast.
we heard the rain on the window all night
it's the first time that i hear this voice
der hund schläft und die sonne scheint
most of the people in the room find that it is enough
"""


def train(path: Path, size: int, symbols: list[str], text: list[str] | None = None):
    """`symbols` are user-defined pieces and take the ids after <unk>."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(text or TEXT.splitlines()),
        model_writer=model,
        vocab_size=size,
        model_type="bpe",
        normalization_rule_name="identity",  # the usual NFKC table alone is 240 KB
        character_coverage=1.0,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        user_defined_symbols=symbols,
        minloglevel=2,
        num_threads=1,
    )
    path.write_bytes(model.getvalue())


def hugging_face(model_path: Path, kind: str) -> ParakeetTokenizer:
    """The added tokens of the published conversion scripts.

    ctc: <pad> is the blank, at V. rnnt: <blank> at V. tdt: <pad> is in the model, <blank> at V.
    streaming: <pad> at V and <blank> at V + 1, although the model's blank is V.
    """
    tok = ParakeetTokenizer(
        tokenizer_object=ParakeetConverter(str(model_path)).converted(), clean_up_tokenization_spaces=False
    )
    added = lambda name: AddedToken(name, normalized=False, special=True)
    pad = "<blank>" if kind == "rnnt" else "<pad>"
    if kind != "rnnt" and tok.convert_tokens_to_ids("<pad>") in (None, tok.convert_tokens_to_ids("<unk>")):
        tok.add_tokens([added("<pad>")])
    if kind != "ctc":
        tok.add_tokens([added("<blank>")])
    tok.add_special_tokens({"pad_token": added(pad), "unk_token": added("<unk>")})
    return tok


class Pieces:
    """A trained model: ids, pieces, text."""

    def __init__(self, path: Path):
        self.sp = spm.SentencePieceProcessor(model_file=str(path))
        self.size = self.sp.get_piece_size()
        self.pieces = [self.sp.id_to_piece(i) for i in range(self.size)]

    def encode(self, text: str) -> list[int]:
        return self.sp.encode(text)

    def decode(self, ids: list[int]) -> str:
        return self.sp.decode(ids)
