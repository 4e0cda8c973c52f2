"""Which engines are loaded where a digest, a signature or a build from the graph is asked for."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from tests.host.handmade import COLUMNS, expected, make_package
from tilewright import Engine, load
from tilewright.engine import file, signing
from tilewright.engine.trust import Trust
from tilewright.errors import (
    EngineDamagedError,
    EngineError,
    EngineUntrustedError,
    MissingDependencyError,
    SettingsError,
    SigningKeyError,
)
from tools.fuzz.engine_files import read_members, write_members

X = np.linspace(-2, 2, 3 * COLUMNS, dtype=np.float32).reshape(3, COLUMNS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine, signed by `mine`, and a second key."""
    folder = tmp_path_factory.mktemp("trust")
    Engine(make_package()).save(folder / "plain.engine")
    signing.create_key(folder / "mine")
    signing.create_key(folder / "other")
    signing.sign_engine(folder / "plain.engine", folder / "mine", folder / "signed.engine")
    return folder


def check(engine: Engine) -> None:
    y, _ = engine(X, np.zeros(4, np.int64))
    np.testing.assert_array_equal(y, expected(X))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("mapped", [False, True])
def test_the_expected_digest_is_that_of_the_file(folder: Path, mapped: bool) -> None:
    path = folder / "plain.engine"
    check(load(path, expect_sha256=sha256(path), mmap=mapped))
    check(load(path, expect_sha256=sha256(path).upper(), mmap=mapped))
    for read in (Engine.load, Engine.read):
        with pytest.raises(EngineUntrustedError, match="not the one that is expected"):
            read(path, expect_sha256=sha256(folder / "signed.engine"), mmap=mapped)
    with pytest.raises(EngineUntrustedError):
        load(path, rebuild=True, expect_sha256="0" * 64)


@pytest.mark.parametrize("digest", ["", "12", "z" * 64, " " + "0" * 63, "0" * 65, 7, b"0" * 64])
def test_malformed_digests_are_reported(folder: Path, digest: object) -> None:
    with pytest.raises(SettingsError, match="64 hexadecimal digits"):
        load(folder / "plain.engine", expect_sha256=digest)  # type: ignore[arg-type]


def test_engines_signed_by_a_trusted_key_load(folder: Path) -> None:
    path, key = folder / "signed.engine", folder / "mine.pub"
    check(load(path))
    check(load(path, trusted_keys=key))
    check(load(path, trusted_keys=str(key)))
    check(load(path, trusted_keys=[folder / "other.pub", key.read_bytes()], mmap=True))
    assert Engine.read(path, trusted_keys=[key]).name == "tiny"


def test_other_engines_do_not(folder: Path) -> None:
    with pytest.raises(EngineUntrustedError, match="is not signed"):
        load(folder / "plain.engine", trusted_keys=folder / "mine.pub")
    with pytest.raises(EngineUntrustedError, match="not a trusted key"):
        load(folder / "signed.engine", trusted_keys=folder / "other.pub")
    with pytest.raises(EngineUntrustedError):
        load(folder / "plain.engine", rebuild=True, trusted_keys=folder / "mine.pub")
    with pytest.raises(EngineUntrustedError):
        load(folder / "plain.engine", rebuild="always", trusted_keys=folder / "mine.pub")


def test_a_signature_covers_everything(folder: Path, tmp_path: Path) -> None:
    """Any member changed, with all digests made anew, is refused; so is the signature of another engine."""
    package = file.read_package(folder / "signed.engine")
    weights = package.weights.data.copy()
    weights[-1] ^= 1
    (program,) = package.manifest["programs"]
    changes = {
        "weights": {"weights": file.Weights.parse(weights)},
        "graph": {"graph": b"{ }"},
        "object": {"objects": {**package.objects, "kernels/scale.o": package.objects["kernels/twice_small.o"]}},
        "added": {"objects": {**package.objects, "kernels/more.o": b""}},
        "manifest": {"manifest": {**package.manifest, "name": "another"}},
        "features": {"manifest": {**package.manifest, "programs": [{**program, "kernels": {}}]}},
    }
    signature = read_members((folder / "signed.engine").read_bytes())[file.SIGNATURES]
    path = tmp_path / "changed.engine"
    for name, change in changes.items():
        file.write_package(dataclasses.replace(package, signed=None, **change), path)
        members = read_members(path.read_bytes())
        path.write_bytes(write_members({**members, file.SIGNATURES: signature}))
        assert file.read_package(path), name
        with pytest.raises(EngineUntrustedError, match="changed after it was signed"):
            load(path, trusted_keys=folder / "mine.pub")
        with pytest.raises(EngineUntrustedError):
            load(path, rebuild="always", trusted_keys=folder / "mine.pub")


@pytest.mark.parametrize("name", [file.WEIGHTS, file.GRAPH])
def test_what_is_built_again_is_what_was_signed(folder: Path, tmp_path: Path, name: str) -> None:
    """Manifest, signature and the zip's checksums are right, the graph or the weights are not."""
    members = read_members((folder / "signed.engine").read_bytes())
    members[name] = members[name][:-1] + bytes([members[name][-1] ^ 1])
    path = tmp_path / "changed.engine"
    path.write_bytes(write_members(members))
    for rebuild in (True, "always"):
        with pytest.raises(EngineDamagedError, match=f"{name} has changed"):
            load(path, rebuild=rebuild, trusted_keys=folder / "mine.pub")


_LINE = b"ed25519 " + b"0" * 64 + b" " + b"0" * 128 + b"\n"


@pytest.mark.parametrize(
    "text",
    [b" ", b"ed25519\n", b"rsa" + _LINE[7:], b"\xff" * 4096, b"ed25519 0 0\n" * 3, _LINE + b"\n\n", _LINE * 17],
)
def test_malformed_signatures_are_reported(folder: Path, tmp_path: Path, text: bytes) -> None:
    members = read_members((folder / "signed.engine").read_bytes())
    path = tmp_path / "malformed.engine"
    path.write_bytes(write_members({**members, file.SIGNATURES: text}))
    check(load(path))  # nobody asked for a signature
    with pytest.raises(EngineDamagedError, match=r"manifest\.signatures is malformed"):
        load(path, trusted_keys=folder / "mine.pub")


def test_a_wrong_signature_next_to_a_right_one_is_reported(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "two.engine"
    signing.sign_engine(folder / "signed.engine", folder / "other", path)
    for key in ("mine.pub", "other.pub"):
        check(load(path, trusted_keys=folder / key))
    signing.sign_engine(path, folder / "other")  # again: the signature is replaced
    members = read_members(path.read_bytes())
    first, second = members[file.SIGNATURES].splitlines(keepends=True)
    members[file.SIGNATURES] = first + second[:-2] + (b"0" if second[-2:-1] != b"0" else b"1") + b"\n"
    path.write_bytes(write_members(members))
    check(load(path, trusted_keys=folder / "mine.pub"))
    with pytest.raises(EngineUntrustedError):
        load(path, trusted_keys=folder / "other.pub")


def test_saving_keeps_signatures_while_they_are_right(folder: Path, tmp_path: Path) -> None:
    engine = Engine.read(folder / "signed.engine")
    engine.save(tmp_path / "again.engine")
    assert (tmp_path / "again.engine").read_bytes() == (folder / "signed.engine").read_bytes()
    package = file.read_package(folder / "signed.engine")
    file.write_package(dataclasses.replace(package, graph=b"{ }"), tmp_path / "changed.engine")
    with pytest.raises(EngineUntrustedError, match="is not signed"):
        load(tmp_path / "changed.engine", trusted_keys=folder / "mine.pub")


@pytest.mark.skipif(os.name != "posix", reason="permissions of files are those of POSIX")
def test_private_keys_are_for_their_owner_alone(folder: Path) -> None:
    previous = os.umask(0)
    try:
        signing.create_key(folder / "private")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((folder / "private").stat().st_mode) == 0o600


def test_keys_are_never_overwritten(folder: Path, tmp_path: Path) -> None:
    before = (folder / "mine").read_bytes()
    with pytest.raises(SigningKeyError, match="never overwritten"):
        signing.create_key(folder / "mine")
    assert (folder / "mine").read_bytes() == before
    (tmp_path / "half").write_text("something")
    with pytest.raises(SigningKeyError, match="never overwritten"):
        signing.create_key(tmp_path / "half")
    assert sorted(os.listdir(tmp_path)) == ["half"]
    with pytest.raises(SigningKeyError, match="cannot write"):
        signing.create_key(tmp_path / "no folder" / "key")
    for path in (Path(""), Path("."), Path(".."), Path("/"), tmp_path):
        with pytest.raises(SigningKeyError, match="is a folder"):
            signing.create_key(path)
    assert sorted(os.listdir(tmp_path)) == ["half"] and not tmp_path.with_name(f"{tmp_path.name}.pub").exists()


@pytest.mark.parametrize("name", ["/dev/zero", "folder", "a\0b", "none"])
def test_keys_are_read_from_regular_files_alone(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SigningKeyError, match="cannot read the key file"):
        load(folder / "signed.engine", trusted_keys=str(tmp_path / name))


def test_malformed_keys_are_reported(folder: Path, tmp_path: Path) -> None:
    elliptic = ec.generate_private_key(ec.SECP256R1())
    encrypted = ed25519.Ed25519PrivateKey.generate()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files = {
        "empty": b"",
        "text": b"hello",
        "cut": (folder / "mine.pub").read_bytes()[:70],
        "flipped": (folder / "mine.pub").read_bytes().replace(b"MCow", b"MCpw"),
        "other kind": elliptic.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo),
        "private": (folder / "mine").read_bytes(),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        for key in (tmp_path / name, data):
            with pytest.raises(SigningKeyError):
                load(folder / "signed.engine", trusted_keys=key)
    files = {
        "public": (folder / "mine.pub").read_bytes(),
        "other private": elliptic.private_bytes(pem, pkcs8, serialization.NoEncryption()),
        "encrypted": encrypted.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"word")),
    }
    before = (folder / "signed.engine").read_bytes()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SigningKeyError):
            signing.sign_engine(folder / "signed.engine", tmp_path / name)
    assert (folder / "signed.engine").read_bytes() == before
    for missing in (tmp_path / "absent", tmp_path):
        with pytest.raises(SigningKeyError, match="cannot read the key file"):
            load(folder / "signed.engine", trusted_keys=missing)
    with pytest.raises(SettingsError, match="trusted_keys is empty"):
        load(folder / "signed.engine", trusted_keys=[])
    for wrong in (7, [7], [None]):
        with pytest.raises(SettingsError):
            load(folder / "signed.engine", trusted_keys=wrong)  # type: ignore[arg-type]


def test_damaged_engines_are_not_signed(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.engine"
    data = bytearray((folder / "plain.engine").read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(EngineError):
        signing.sign_engine(path, folder / "mine")
    assert path.read_bytes() == data


def test_without_the_package_it_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(MissingDependencyError, match=r"tilewright\[sign\]"):
        load(folder / "signed.engine", trusted_keys=folder / "mine.pub")
    check(load(folder / "signed.engine"))


def test_what_verification_tells(folder: Path) -> None:
    path = folder / "signed.engine"
    assert "neither" in signing.verify_engine(path, Trust())
    trust = Trust.of(sha256(path), folder / "mine.pub")
    assert signing.verify_engine(path, trust).startswith("it is the expected file; signed by the trusted key ")
