"""What looks like a secret is blacked out, what only sounds like one is not."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grporecipe.errors import UserError
from grporecipe.redaction import SHOWN, redact
from grposweep.process.redaction import StreamRedactor, refuse_secrets
from support import PROJECT, environment

LETTERS = "".join(map(chr, range(97, 123))) + "0123456789"
HF = "hf_" + "aB3dE" * 6
SECRETS = {
    "a hub token": (f"401 for {HF} at https://huggingface.co", HF),
    "an OpenAI key": ("key sk-proj-abc123def456ghi789", "abc123def456"),
    "a GitHub token": ("ghp_" + "a1" * 18, "a1a1a1"),
    "a variable": (
        "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567",
        "0123456789abcdef",
    ),
    "a variable in YAML": ("MY_SECRET: swordfish", "swordfish"),
    "a variable in JSON": ('{"DB_PASSWORD": "sword fish"}', "sword"),
    "a quoted variable": ("HF_TOKEN='a b c' python", "a b c"),
    "an option": ("--export=NONE,SOME_TOKEN=swordfish", "swordfish"),
    "a password in an address": ("postgresql://me:swordfish@host/db", "swordfish"),
    "a private key": ("-----BEGIN RSA PRIVATE KEY-----", "PRIVATE"),
    "a key of AWS": ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN"),
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_blacked_out_and_the_rest_stays(name: str) -> None:
    """And once is enough."""
    text, secret = SECRETS[name]
    shown = redact(f"before {text} after")
    assert secret not in shown
    assert shown.startswith("before")
    assert shown.endswith("after")
    assert SHOWN in shown
    assert redact(shown) == shown


HARMLESS = [
    "pad_token: <|endoftext|>",
    "max_new_tokens=256",
    "eos_token_id: 151643",
    "export HF_TOKEN=$HF_TOKEN",
    "HF_TOKEN=${HF_TOKEN:?}",
    "export WANDB_API_KEY=$(cat ~/.wandb)",
    "WANDB_API_KEY=`cat x`",
    "HF_TOKEN: null",
    "HF_TOKEN=",
    "git 2f7c1d9e0b3a4c5d6e7f8091a2b3c4d5e6f70819",
    "hf_hub_download",
    "task-1234567890abcdefgh",
    "scikit-learn",
    "https://host:8000/a@b",
    "the password is not here",
    "NUM_TOKENS=100",
    "TOKENIZERS_PARALLELISM=false",
    f"HF_TOKEN={SHOWN}",
    "https://huggingface.co/Qwen/Qwen3-0.6B",
    "postgresql://me@host/db",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    """Provenance must stay readable."""
    assert redact(text) == text


VALUE = "swordfish0123456"
NAMES = [
    "API_KEY",
    "TOKEN",
    "SECRET_KEY",
    "DJANGO_SECRET_KEY",
    "OPENAI_KEY",
    "WANDB_KEY",
    "AZURE_STORAGE_KEY",
    "GITHUB_PAT",
    "DB_PASS",
    "MYSQL_PWD",
    "HF_TOKEN_READ",
    "OPENAI_API_KEY_2",
    "API_TOKEN_PROD",
    "hf_token",
    "MYPASSWORD",
    "AWS_SECRET_ACCESS_KEY",
    "COMET_API_KEY",
    "SWANLAB_APIKEY",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_names_that_people_give_their_secrets_are_known_everywhere(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a variable, next to its name, as an option, and in a configuration."""
    for form in ("{}={}", "export {}='{}'", "{}: {}", '{{"{}": "{}"}}', "--{} {}"):
        assert VALUE not in redact(form.format(name, VALUE))
    with pytest.raises(UserError, match="looks like a secret"):
        refuse_secrets({"trainer": {"environment": {name: VALUE}}})
    monkeypatch.setenv(name, VALUE)
    assert redact(f"said {VALUE} again") == f"said {SHOWN} again"


NO_SECRETS = {
    "HYDRA_FULL_ERROR": "1",
    "MONKEY": "see0123456789abc",
    "KEYBOARD": "us-intl-0123456789",
    "SSH_AUTH_SOCK": "/tmp/ssh/agent.1234",
    "num_tokens": "123456789012",
    "max_tokens": "4096",
    "pad_token": "<|endoftext|>",
    "eos_token": "<|im_end|>0123",
    "tokenizer": "Qwen/Qwen2.5-1.5B",
    "prompt_key": "prompt_of_2026_v12",
    "reward_fn_key": "data_source",
    "PWD": "/home/me/project1",
    "OLDPWD": "/home/me/project1",
    "HF_TOKEN_PATH": "/home/me/.hf/token1",
    "AWS_ACCESS_KEY_ID": "identity01234567",
    "max_token_len_per_gpu": "16384",
    "use_wandb": "true",
    "TOKENIZERS_PARALLELISM": "false",
    "pass_rate": "0.123456789012",
}


@pytest.mark.parametrize("name", NO_SECRETS)
def test_names_that_only_sound_like_a_secret_hide_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither next to the name, nor at another place."""
    monkeypatch.setenv(name, NO_SECRETS[name])
    for form in ("{}={}", "{}: {}", '"{}": "{}"', "--{} {}"):
        assert redact(text := form.format(name, NO_SECRETS[name])) == text
    refuse_secrets({"trainer": {"environment": {name: NO_SECRETS[name]}}})


@pytest.mark.parametrize("value", ["1", "true", "training", "12345678", "none"])
def test_a_secret_that_is_a_common_word_does_not_blank_the_log(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is hidden next to its name only."""
    monkeypatch.setenv("DB_PASS", value)
    assert redact(f"step {value} of training") == f"step {value} of training"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Token 0123456789abcdef", "Authorization: Token ***"),
        (
            "headers={'authorization': 'Basic bWU6c3dvcmRmaXNo'}",
            "headers={'authorization': 'Basic ***'}",
        ),
        ("login(password='short1')", "login(password='***')"),
        ("password=abcd, user=me", "password=***, user=me"),
        ("password=getpass(), password: str", "password=getpass(), password: str"),
        ("GET https://host?api_key=abcdef&page=1", "GET https://host?api_key=***&page=1"),
    ],
)
def test_headers_and_short_passwords_are_hidden(text: str, shown: str) -> None:
    """Code that asks for one stays readable."""
    assert redact(text) == shown


def test_a_password_is_known_as_a_url_quotes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs print the address that they made of it."""
    monkeypatch.setenv("DB_PASSWORD", "correct/horse@battery")
    assert redact("at correct%2Fhorse%40battery, it says") == f"at {SHOWN}, it says"


@given(
    st.text(LETTERS + LETTERS.upper(), min_size=16, max_size=40),
    st.text(max_size=20),
    st.text(max_size=20),
)
def test_no_token_survives_in_any_place(token: str, before: str, after: str) -> None:
    """Behind and before anything that is no letter or digit."""
    assert f"hf_{token}" not in redact(f"{before} hf_{token} {after}")


@given(st.text())
def test_any_text_is_taken(text: str) -> None:
    """And what was redacted once stays as it is."""
    assert redact(redact(text)) == redact(text)


def test_the_values_of_this_environments_secrets_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they got into a text; words too short to be told from others are not."""
    monkeypatch.setenv("WANDB_API_KEY", "correct-horse-battery")
    monkeypatch.setenv("SHORT_TOKEN", "and")
    assert redact("user and correct-horse-battery@host") == f"user and {SHOWN}@host"


def test_a_secret_that_is_set_changed_or_removed_later_is_known_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names of variables are remembered, their values are not."""
    seen = []
    for value in ("correct-horse-battery", "staple-of-a-horse", None):
        if value is None:
            monkeypatch.delenv("LATER_API_KEY")
        else:
            monkeypatch.setenv("LATER_API_KEY", value)
        seen.append(redact("correct-horse-battery, staple-of-a-horse"))
    assert seen == [
        f"{SHOWN}, staple-of-a-horse",
        f"correct-horse-battery, {SHOWN}",
        "correct-horse-battery, staple-of-a-horse",
    ]


@pytest.mark.parametrize(
    "content",
    [
        {"cluster": {"setup": ["module load cuda", f"export HF_TOKEN={HF}"]}},
        {"trainer": {"environment": {"WANDB_API_KEY": "0123456789abcdef0123"}}},
        {"hub_token": "anything at all"},
        {"search": {"storage": "postgresql://me:swordfish@host/db"}},
    ],
)
def test_a_configuration_that_holds_a_secret_is_refused_without_showing_it(
    content: dict[str, object],
) -> None:
    """The key is named, and where the secret belongs."""
    with pytest.raises(UserError, match="environment of the shell") as raised:
        refuse_secrets(content)
    assert not any(
        word in str(raised.value) for word in (HF, "0123456789", "anything", "swordfish")
    )


def test_a_configuration_that_refers_to_a_secret_is_fine() -> None:
    """Its readers learn nothing."""
    refuse_secrets(
        {
            "cluster": {"setup": ["export HF_TOKEN=$(cat ~/.hf_token)"]},
            "pad_token": "<|endoftext|>",
            "hub_token": None,
        }
    )
    refuse_secrets(
        {"trainer": {"environment": {"HF_TOKEN": "${HF_TOKEN}", "WANDB_MODE": "offline"}}}
    )


def test_what_training_prints_is_guarded() -> None:
    """By prints, by tracebacks, and by loggers that start afterwards."""
    code = (
        "import logging, os, sys; from grposweep.process.redaction import guard_output; guard_output(); "
        "guard_output()\n"
        f"print('a {HF} b'); print('correct-horse-battery', file=sys.stderr); "
        "logging.warning('correct-horse-battery')\n"
        # Python 3.13 shows this line
        "raise RuntimeError(os.environ['MY_TOKEN'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment(PYTHONPATH=str(PROJECT / "src"), MY_TOKEN="correct-horse-battery"),
    )
    assert done.stdout == f"a {SHOWN} b\n"
    assert done.stderr.count(SHOWN) == 3
    assert "horse" not in done.stderr


KEY_LINES = [
    "-----BEGIN PRIVATE KEY-----",
    "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
    "BKcwggSjAgEAAoIBAQDmetUL",
    "Ag==",
    "-----END PRIVATE KEY-----",
]
LOG = "{'completions/mean_length': 12.5, 'reward': 0.5}\n"


@pytest.mark.parametrize("prefix", ["", "INFO worker: "])
def test_a_private_key_that_is_printed_line_by_line_is_redacted(prefix: str) -> None:
    """Each line is a part of its own, as ``print`` and programs write them; what follows the key
    stays.
    """
    redactor = StreamRedactor()
    lines = [f"{prefix}{line}" for line in KEY_LINES if line != "Ag==" or not prefix]
    parts = [part for line in [*lines, "step 12 of 100: reward 0.5"] for part in (line, "\n")]
    shown = "".join(map(redactor, parts))
    assert not any(line in shown for line in KEY_LINES)
    assert shown.endswith("step 12 of 100: reward 0.5\n")


def test_what_follows_a_key_that_was_cut_off_is_left_alone() -> None:
    """A marker alone hides no log."""
    redactor = StreamRedactor()
    said = "".join(
        map(
            redactor,
            ["-----BEGIN PRIVATE KEY-----\n", "it has no key\n", "checkpoint_of_the_model saved\n"],
        )
    )
    assert said == f"{SHOWN}\nit has no key\ncheckpoint_of_the_model saved\n"
    redactor = StreamRedactor()
    assert (
        "".join(map(redactor, ["-----BEGIN PRIVATE KEY-----\n", LOG, LOG]))
        == f"{SHOWN}\n{LOG}{LOG}"
    )


def test_a_key_with_a_header_is_redacted() -> None:
    """Of an encrypted key; the header itself may be shown."""
    redactor = StreamRedactor()
    lines = [KEY_LINES[0], "Proc-Type: 4,ENCRYPTED", *KEY_LINES[1:]]
    shown = "".join(redactor(f"{line}\n") for line in lines)
    assert not any(line in shown for line in KEY_LINES)
