import hashlib

import pytest

from serving.security.keys import digest_of, new_secret, read_keys

GOOD = '[[keys]]\nname = "shop"\nsha256 = "{digest}"\nscopes = ["read"]\n'


def write(folder, text):
    path = folder / "keys.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_key_is_found_by_its_hash_and_nothing_else_is(tmp_path):
    secret = new_secret()
    assert digest_of(secret) == hashlib.sha256(secret.encode()).hexdigest()
    path = write(tmp_path, GOOD.format(digest=digest_of(secret)))
    assert secret not in path.read_text()
    ring = read_keys(path)
    assert ring.find(secret).name == "shop"
    for wrong in ("", secret[:-1], secret + "a", secret.upper(), digest_of(secret), "\udcff"):
        assert ring.find(wrong) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys = 3", "keys: Input should be a valid list"),
        ("[[keys]]", "keys.0.name: Field required"),
        ("not toml", "cannot be read"),
        (GOOD.format(digest="abc"), "sha256: String should match"),
        (GOOD.format(digest="A" * 64), "sha256: String should match"),
        (GOOD.format(digest="0" * 64).replace('"read"', '"root"'), "scopes"),
        (GOOD.format(digest="0" * 64).replace('"read"', ""), "scopes"),
        (GOOD.format(digest="0" * 64) + "rate = 0\n", "rate: Input should be greater than 0"),
        (GOOD.format(digest="0" * 64) + "rate = nan\n", "rate: "),
        (GOOD.format(digest="0" * 64) + "secret = 'x'\n", "secret: Extra inputs"),
        (GOOD.format(digest="0" * 64).replace("shop", "a b"), "name: String should match"),
        (GOOD.format(digest="0" * 64) * 2, "name 'shop' twice"),
    ],
)
def test_faulty_files_are_refused_and_say_where(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_keys(write(tmp_path, text))


def test_a_file_that_others_may_write_is_refused(tmp_path):
    path = write(tmp_path, GOOD.format(digest="0" * 64))
    path.chmod(0o666)
    with pytest.raises(ValueError, match="chmod go-w"):
        read_keys(path)
    with pytest.raises(ValueError, match="cannot be read"):
        read_keys(tmp_path / "none.toml")
