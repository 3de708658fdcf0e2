"""The command itself: fast help, exit codes, errors in one line."""

import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.cli.shell import one_line, tdu, tdu_json, write_parquet
from torch_dataloader_utils.cli.app import COMMANDS, app
from torch_dataloader_utils.cli.options import _SUBJECTS


def test_help_of_every_command_has_examples():
    assert "tdu scan" in tdu("--help").stdout
    for command in COMMANDS:
        assert command in tdu("--help").stdout
        group = [command, "build"] if command == "tokens" else [command]
        assert "Examples:" in tdu(*group, "--help").stdout


def test_the_list_of_commands_says_what_the_commands_say():
    for name, summary in COMMANDS.items():
        assert app.get_command(None, name).help.splitlines()[0] == summary


@pytest.mark.processes
def test_help_imports_neither_torch_nor_pyarrow_nor_numpy():
    script = (
        "import sys\n"
        "from torch_dataloader_utils.cli.app import COMMANDS, app\n"
        "try:\n    app(['--help'])\n"
        "finally:\n    print(sorted({'torch', 'pyarrow', 'numpy', 'rich', 'fsspec'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.processes
def test_the_console_script_and_the_module_are_the_same_command(table):
    command = [sys.executable, "-m", "torch_dataloader_utils.cli", "scan", str(table / "nothing-*.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["scan"], "Nothing to read"),
        (["explain"], "No such command 'explain'. See tdu"),
        (["plan", "{table}", "--ranks", "two"], "--help"),
        (["plan", "{table}", "--rank"], "--ranks"),
        (["state", "/nowhere"], "does not exist"),
        (["scan", "/nowhere/at/all"], "does not exist"),
        (["plan", "{table}", "--ranks", "0"], "'--ranks'"),
        (["plan", "{table}", "--split-bytes", "many"], "no number of bytes"),
        (["plan", "{table}", "--strategy", "mine"], "No split strategy"),
        (["plan", "{table}", "--lanes", "5", "--ranks", "2"], "lanes=Lanes(5"),
        (["plan", "{table}", "--lane-rows", "5"], "--lane-rows 5"),
        (["head", "{table}", "--columns", "id,nothing"], "nothing"),
        (["head", "{table}", "--rank", "7"], "--rank 7"),
        (["scan", "{table}", "--filter", "id >"], "--filter"),
        (["scan", "{table}", "--filter", "__import__('os').system('true')"], "is no column"),
        (["scan", "{table}", "--filter", "nothing > 3"], "nothing"),
        (["plan", "{table}", "--holdout", "0.1"], "Holdout.part=''"),
        (["plan", "{table}", "--holdout", "train=0.1"], "--holdout 'train=0.1' is not FRACTION,PART: write"),
        (["plan", "{table}", "--holdout", "0.1,train,of=id"], "--holdout '0.1,train,of=id'"),
        (["plan", "{table}", "--holdout", "10,train"], "such as 0.1"),
        (["bench", "{table}", "--workers", "two"], "--workers 'two'"),
        (["bench", "{table}", "--batch-sizes", "0"], "--batch-sizes '0'"),
        (["bench", "{table}", "--seconds", "nan"], "nan is not above 0"),
        (["bench", "{table}", "--seconds", "0"], "0.0 is not above 0"),
        (["bench", "{table}", "--seconds", "-1"], "-1.0 is not above 0"),
        (["scan", "{table}", "--option", "a=1", "--option", "a.b=2"], "--option number 2: a.b and an earlier --option"),
        (["scan", "{table}", "--option", "a.b=2", "--option", "a=1"], "--option number 2: a and an earlier --option"),
        (["scan", "{table}", "--filter", "not " * 3000 + "id"], "nested too deeply"),
        (["scan", "a", "b", "--format", "iceberg"], "one at a time"),
        (["scan", "{table}", "--snapshot", "7"], "--snapshot 7"),
        (["scan", "db.t", "--format", "iceberg", "--partitioning", "hive"], "--partitioning hive"),
        (["plan", "--inventory", "a.parquet", "--partitioning", "hive"], "--partitioning hive"),
        (["plan", "--inventory", "{table}"], "is a directory. Pass the path of a file inside"),
        (["verify", "--inventory", "a.parquet", "--catalog", "prod"], "--inventory a.parquet is of files"),
        (
            ["scan", "db.t", "--format", "orc", "--catalog", "prod"],
            "--catalog is for Iceberg tables, and --format orc is not",
        ),
        (["head", "{table}", "--rows", "-1"], "--rows"),
        (["plan", "{table}", "--max-ranks", "0"], "--max-ranks"),
        (["tokens", "build", "{table}", "corpus", "--column", "id", "--workers", "0"], "--workers"),
        (["tokens", "build", "{table}", "corpus", "--column", "id", "--outputs", "0"], "--outputs"),
        (["tokens", "build", "{table}", "{table}/part-0.parquet/corpus", "--column", "id"], "part-0.parquet"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(table, arguments, says):
    result = tdu(*(each.format(table=table) for each in arguments), code=2)
    assert says in one_line(result)


def test_what_the_storage_refuses_is_exit_code_1(table):
    assert "cannot write" in one_line(tdu("scan", table, "--save", table / "part-0.parquet" / "saved", code=1))


def test_secrets_are_not_repeated(table):
    line = one_line(tdu("scan", table, "--option", "hunter2", code=2))
    assert "key=value" in line
    assert "hunter2" not in line
    assert "hunter2" not in one_line(tdu("scan", "/nowhere", "--option", "key=hunter2", code=2))


@pytest.mark.parametrize(
    "arguments",
    [
        ["{url}"],
        ["state", "{url}"],
        ["scan", "{table}", "--inventory", "{url}"],
        ["plan", "{table}", "--draw", "{url}"],
        ["plan", "{table}", "--save", "{url}"],
        ["tokens", "sequences", "corpus", "{url}"],
    ],
)
def test_a_signed_url_is_not_repeated_where_a_local_file_belongs(table, arguments):
    url = "https://host/a.parquet?X-Amz-Signature=hunter2"
    assert "hunter2" not in one_line(tdu(*(each.format(table=table, url=url) for each in arguments), code=2))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no/?ear=2024/*.parquet"], "no/?ear=2024/*.parquet: the pattern matches no file"),
        (["{table}", "--columns", "a:b@c"], "columns names 'a:b@c'"),
        (["{table}", "--filter", "id==1&q==2"], "--filter 'id==1&q==2'"),
    ],
)
def test_what_is_no_url_is_repeated_as_it_is(table, arguments, says):
    assert says in one_line(tdu("scan", *(each.format(table=table) for each in arguments), code=2))


@pytest.mark.parametrize(
    ("command", "options"),
    [("scan", ["--files"]), ("plan", []), ("plan", ["--ranks", 2]), ("head", []), ("verify", ["--no-read"])],
)
def test_names_and_values_send_no_control_characters_to_the_terminal(tmp_path, command, options):
    escape = "\x1b]0;title\x07\x9b2J"
    folder = tmp_path / f"k={escape}"
    folder.mkdir()
    data = pa.table({f"id{escape}": [1, 2], "text": [f"a{escape}", "b\rc"]})
    pq.write_table(data, folder / f"part{escape}.parquet")
    shown = tdu(command, tmp_path, "--partitioning", "hive", *options)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown.output)
    if command in ("scan", "head"):
        assert "\\x1b" in shown.output


@pytest.mark.parametrize(("arguments", "code"), [([""], 1), (["none\x1b[2J"], 2)])
def test_an_error_sends_no_control_characters_to_the_terminal(tmp_path, arguments, code):
    path, *options = arguments
    (tmp_path / "a\x1b[2J.parquet").write_bytes(b"no parquet")
    line = one_line(tdu("scan", tmp_path / path, *options, code=code))
    assert "\x1b" not in line
    assert "\\x1b" in line


def test_warnings_are_lines_on_stderr(table):
    result = tdu("head", table, "--ranks", "4", "--rank-sharding", "chunks", "--batch-size", "7")
    assert "Traceback" not in result.stderr
    assert tdu_json("head", table, "--ranks", "4", "--rank-sharding", "chunks", "--batch-size", "7")["batches"]


@pytest.mark.processes
def test_a_name_that_the_output_cannot_encode_is_no_traceback(tmp_path):
    write_parquet(tmp_path / "\N{SNOWMAN}.parquet", 5, 5)
    command = [sys.executable, "-m", "torch_dataloader_utils.cli", "scan", str(tmp_path), "--files"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u2603.parquet" in done.stdout


def test_the_version_names_decoder_and_clients():
    lines = tdu("--version").stdout.splitlines()
    assert [line.split("  ")[0].split(",")[0] for line in lines] == ["tdu", "compiled decoder", "store clients"]


def test_help_has_the_options_in_groups() -> None:
    titles = re.findall(r"^(\S.*):$", tdu("plan", "--help").stdout, re.M)
    assert [title for title in titles if title != "Examples"] == [
        "Data",
        "Ranks and batches",
        "Order",
        "Who reads what",
        "Options",
    ]


def test_every_option_of_a_group_exists() -> None:
    shown = {param.name for name in ("plan", "scan") for param in app.get_command(None, name).params}
    assert {name for names in _SUBJECTS.values() for name in names.split()} <= shown


def test_colours_are_for_terminals_that_want_them(table, monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(**options: object) -> str:
        return CliRunner().invoke(app, ["scan", str(table)], **options).stdout

    assert "\x1b[" not in scan()
    assert "\x1b[" in scan(color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in scan(color=True)


# Programs rely on these names; new names may be added, none may go.
JSON_NAMES = {
    "scan": "source fingerprint num_files num_row_groups num_rows stored_bytes projected_bytes schema warnings",
    "plan": "source fingerprint epoch seed num_ranks num_workers batch_size steps rank_rows dropped_rows workers",
    "verify": "ok source num_row_groups rows_read faults plan",
    "head": "rank epoch batches",
    "doctor": "facts findings call",
}


@pytest.mark.parametrize("command", JSON_NAMES)
def test_json_keeps_its_names(table, command: str) -> None:
    assert set(JSON_NAMES[command].split()) <= set(tdu_json(command, table))


@pytest.mark.processes
def test_the_shell_completes_commands() -> None:
    environment = {**os.environ, "_TDU_COMPLETE": "bash_complete", "COMP_WORDS": "tdu pl", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from torch_dataloader_utils.cli import main; main()"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "plain,plan\n"
