"""Digests of files: the same as those of the libraries, and never guessed."""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

import pytest
import xxhash

from resilience.checkpoints import digest
from resilience.checkpoints.digest import best_algorithm, digest_file, is_known, list_files
from resilience.checkpoints.names import OWN
from resilience.errors import CheckpointError

SIZES = (0, 1, digest.CHUNK_BYTES - 1, digest.CHUNK_BYTES, 2 * digest.CHUNK_BYTES + 7)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_the_digest_is_that_of_the_library(tmp_path: Path, size: int, sync: bool) -> None:
    raw = os.urandom(size)
    path = tmp_path / "file"
    path.write_bytes(raw)
    assert digest_file(path, "crc32", sync=sync) == (size, f"{zlib.crc32(raw):08x}")
    assert digest_file(path, "xxh3_128", sync=sync) == (size, xxhash.xxh3_128_hexdigest(raw))


def test_without_xxhash_digests_are_crc32_and_others_cannot_be_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert best_algorithm() == "xxh3_128" and is_known("xxh3_128")
    monkeypatch.setitem(sys.modules, "xxhash", None)
    (tmp_path / "file").write_text("x")
    assert best_algorithm() == "crc32" and is_known("crc32") and not is_known("xxh3_128")
    with pytest.raises(CheckpointError, match=r"xxh3_128 cannot be computed here .install the package xxhash"):
        digest_file(tmp_path / "file", "xxh3_128")


@pytest.mark.parametrize("algorithm", ["xxh3_64", "sha256", ""])
def test_a_digest_of_another_kind_cannot_be_computed(tmp_path: Path, algorithm: str) -> None:
    (tmp_path / "file").write_text("x")
    assert not is_known(algorithm)
    with pytest.raises(CheckpointError, match="cannot be computed here"):
        digest_file(tmp_path / "file", algorithm)


def test_no_link_is_followed_and_an_error_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    for path in (tmp_path / "link", tmp_path / "missing", tmp_path):
        with pytest.raises(OSError) as caught:
            digest_file(path, "crc32")
        assert caught.value.filename == str(path)


def test_a_list_has_all_files_but_our_own(tmp_path: Path) -> None:
    for path in ("a", "b/c", "b/d/e", f"{OWN}/manifest.json", f"b/{OWN}/x", "empty/.nfs00000000001f2b"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    sizes, directories = list_files(tmp_path)
    assert sizes == {path: len(path) for path in ("a", "b/c", "b/d/e", f"b/{OWN}/x")}
    assert sorted(directories) == ["b", f"b/{OWN}", "b/d", "empty"]
    assert directories.index("b") < directories.index("b/d")
    assert list_files(tmp_path / "a") == ({"": 1}, [])
