"""No password, token or signature is left of an address, whatever characters it has and wherever it stands."""

from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from autojacobin.core.addresses import redacted_address, redacted_message

SCHEMES = ["postgresql", "s3", "https", "tls", "tcp", "ws", "milvus", "abfs", "ftp", "redis", "jdbc:postgresql", "zip"]
QUERIES = ["?sig=", "?token=", "?X-Amz-Signature=", "?sv=2024&sig=", "?", "#access_token=", ";password=", "?a=b#"]
odd = st.text(st.sampled_from("/@:?#&=%;,'\"\\ []{}ab1.*$\n") | st.characters(), min_size=1, max_size=12)
secrets = odd | st.from_regex(r"[A-Za-z0-9+/]{8,40}={0,2}", fullmatch=True)


@given(st.sampled_from(SCHEMES), st.sampled_from(["me", "", "a.b"]), secrets)
@example("https", "me", "sesame/open@home:1#x?y=z")
@example("https", "me", "x://a@b:1/")
def test_a_password_before_a_host_leaves_nothing_behind(scheme, user, secret):
    shown = redacted_address(f"{scheme}://{user}:{secret}@host:1/base.npy")
    assert shown in (f"{scheme.removeprefix('jdbc:')}://host:1", f"{scheme.removeprefix('jdbc:')}://***")


@given(st.sampled_from(SCHEMES), secrets)
def test_a_token_in_the_place_of_a_user_leaves_nothing_behind(scheme, secret):
    shown = redacted_address(f"{scheme}://{secret}@host/base.npy")
    assert shown in (f"{scheme.removeprefix('jdbc:')}://host", f"{scheme.removeprefix('jdbc:')}://***")


@given(st.sampled_from(SCHEMES), st.sampled_from(QUERIES), secrets)
@example("https", "?sig=", "a@b")
@example("https", ";password=", "a@b")
def test_a_signature_after_the_path_leaves_nothing_behind(scheme, query, secret):
    shown = redacted_address(f"{scheme}://host:1/base.npy{query}{secret}")
    assert shown in (f"{scheme.removeprefix('jdbc:')}://host:1", f"{scheme.removeprefix('jdbc:')}://***")


@given(st.sampled_from(["password", "PASSWORD", "pass", "sslpassword", "AccountKey", "secret_access_key"]), secrets)
@example("password", "a:b@c")
@example("password", "'x://u:p@h y'")
def test_a_password_of_a_connection_string_leaves_nothing_behind(name, secret):
    for between in ("=", " = "):
        shown = redacted_address(f"host=h user=u {name}{between}{secret} dbname=d")
        assert shown in ("host=h user=u ***", "host=h user=u ssl***")


@given(secrets)
@example("a://b")
def test_a_password_without_a_scheme_leaves_nothing_behind(secret):
    assume(not secret.startswith("//"))  # which makes the user a scheme
    assert redacted_address(f"me:{secret}@host:1/x") == "***"


@given(secrets.filter(lambda secret: not set(secret) & set("@?#:,") and "=" not in secret))
def test_a_password_without_a_host_leaves_nothing_behind(secret):
    assume(not secret.partition("/")[0].isdigit() and secret[0] != "/")  # or else it is a port and a path
    assert redacted_address(f"tcp://me:{secret}") == "tcp://***"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:open/sesame@host/x", "https://host"),
        ("s3://KEY:ab/cd+ef@bucket/part-*.npy", "s3://bucket"),
        ("https://host/x?sv=1&sig=abc", "https://host"),
        ("https://bucket.s3.amazonaws.com/x?X-Amz-Signature=abc", "https://bucket.s3.amazonaws.com"),
        ("tls://me:sesame@scheduler:8786", "tls://scheduler:8786"),
        ("tcp://me:sesame", "tcp://***"),
        ("postgresql://a:1,b:2/shop", "postgresql://a:1,b:2/shop"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x"),
        ("http://me:pw@[::1", "http://***"),
        ("zip://part-*.npy::/data/all.zip", "zip://part-*.npy::/data/all.zip"),
        ("zip://*.npy::s3://bucket/all.zip", "zip://*.npy::s3://bucket/all.zip"),
        ("zip://*.npy::https://me:sesame@host/all.zip", "zip://host"),
        ("simplecache::https://me:sesame@host/x", "https://host"),
        ("file:///data/run@2/part?.npy", "file:///data/run@2/part?.npy"),
        ("file:///x::https://me:sesame@host/x", "file://host"),
        ("AccountName=a;AccountKey=sesame==;EndpointSuffix=x", "AccountName=a;***"),
        ("host/x?sig=abc", "***"),
        ("https:/host/x?sv=1&sig=abc", "***"),  # as a Path writes it
        ("https:/me:sesame@host/x", "***"),
        ("//me:sesame@host/x", "***"),
    ],
)
def test_addresses_are_shown_without_their_secrets(address, shown):
    assert redacted_address(address) == shown
    assert redacted_address(shown) == shown
    told = redacted_message(f"cannot read {address}")
    assert not any(secret in told for secret in ("sesame", "abc", "ab/cd", ":pw"))


@pytest.mark.parametrize(
    "plain",
    [
        "base.npy", "/data/a:b@c.npy", "./run@2/base.npy", r"C:\Users\me@corp\base.npy", "C:/me@corp/base.npy",
        "part-?.npy", "part-[01]*.npy", "n_iter=7", "local:4", "tcp://scheduler:8786", "s3://bucket/part-[01].npy",
        "http://localhost:19530", "results.npz::train", "-", "",
    ],
)  # fmt: skip
def test_paths_and_addresses_without_secrets_stay_as_they_are(plain):
    assert redacted_address(plain) == plain
    assert redacted_message(f"cannot read {plain!r}; look at {plain}") == f"cannot read {plain!r}; look at {plain}"


def test_paths_and_bytes_are_addresses_too():
    assert redacted_address(Path("https://me:sesame@host/x")) == "***"
    assert redacted_address(b"https://me:sesame@host/x") == "https://host"


@given(st.sampled_from(SCHEMES), secrets, st.sampled_from(["{}", "{!r}", "bad port {}", "<{!r}>", "'{!s}', line 1"]))
@example("https", "two words", "{!r}")
def test_a_message_that_quotes_an_address_or_its_password_has_no_password(scheme, secret, template):
    assume(len(secret.strip()) >= 4 and "*" not in secret)
    address = f"{scheme}://me:{secret}@host/base.npy"
    around = template.replace("{", "").replace("}", "") + scheme + "@host/base.npy"
    assume(secret not in around and secret.strip() not in around)
    for quoted in (address, secret, repr(address)):
        told = redacted_message(template.format(quoted), address)
        assert secret not in told
        assert repr(secret)[1:-1] not in told


@given(secrets)
def test_a_message_has_no_token(secret):
    assume(len(secret) >= 4 and "*" not in secret and secret not in "the token  is refused")
    assert secret not in redacted_message(f"the token {secret} is refused", secrets=(secret,))
    assert redacted_message("the token is refused", secrets=(None, "")) == "the token is refused"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("got 'https://me:sesame@host/x'; look", "got 'https://host'; look"),
        ("from https://a/b?sig=1 to https://me:p@c/d, failed", "from https://a to https://c, failed"),
        ("connect(host=h password='open sesame' user=u)", "connect(host=h password=*** user=u)"),
        ("connect(password='open sesame", "connect(password=***"),
        ("{'aws_secret_access_key': 'sesame', 'region': 'x'}", "{'aws_secret_access_key': ***, 'region': 'x'}"),
        ("sent Authorization: Bearer sesame\nto host", "sent Authorization: ***\nto host"),
        ("cannot reach me:sesame@127.0.0.1:9", "cannot reach ***"),
        (
            "pass rerank=False, or build it with keep_vectors=True",
            "pass rerank=False, or build it with keep_vectors=True",
        ),
        ('password authentication failed for user "guest"', 'password authentication failed for user "guest"'),
    ],
)
def test_messages_are_shown_without_secrets(message, told):
    assert redacted_message(message) == told


def test_parts_of_a_password_that_a_parser_tells_of_are_hidden():
    address = "http://me:open/sesame@host:1/x"
    assert redacted_message("Port could not be cast to integer value as 'open'", address).endswith("as '***'")
    assert redacted_message("no file sesame@host:1/x", address) == "no file ***@host:1/x"
    assert redacted_message("got open%2Fsesame", address) == "got ***"


def test_parts_of_a_token_are_hidden():
    assert redacted_message("neither open:sesame nor open nor sesame", secrets=("open:sesame",)).count("***") == 3
