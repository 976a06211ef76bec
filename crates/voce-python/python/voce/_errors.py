"""The exception of the package."""

from __future__ import annotations


class VoceError(Exception):
    """Something went wrong; the text says what to do, and `code` is a short name for programs.

    Codes are those of `voce --json` and of the server: `not_found`, `not_pulled`, `unknown_voice`, `bad_request`,
    `busy`, `no_room`, `bad_text`, `ended`, `stopped` and so on.
    """

    code: str

    def __init__(self, text: str, code: str = "error") -> None:
        super().__init__(text, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])
