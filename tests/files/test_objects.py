"""`read_object`: one JSON object from a file, or an error that names the file and the remedy."""

from pathlib import Path

import pytest

from semcal.errors import StoreError
from semcal.files import read_object


def test_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, null]}', encoding="utf-8")
    assert read_object(path, remedy="make it again") == {"a": [1, None]}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"a"', b"null", b'{"a": "\xff"}', b"[" * 100_000])
def test_anything_else_is_an_error_with_the_file_and_the_remedy(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"a\.json is damaged .*: make it again$"):
        read_object(path, remedy="make it again")
