"""`sirdar` itself, and its verbs that read no tensors."""

import json
import pty
import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import binary

SVG = "{http://www.w3.org/2000/svg}"
COLORS = {"empty": "#f1f1ee", "part": "#e8a33d", "full": "#2f6f9f"}


def test_version_and_help(sirdar):
    assert re.fullmatch(r"sirdar \d+\.\d+\.\d+\n", sirdar.ok("--version").out)
    overview = sirdar.ok("--help").out
    for verb in ("attend", "check", "explain", "bench", "ladder", "compile", "cache", "doctor",
                 "selftest"):
        assert verb in overview
        assert "Usage" in sirdar.ok(verb, "--help").out
    for verb in ("attend", "check", "explain", "doctor", "selftest"):
        assert "Example" in sirdar.ok(verb, "--help").out


@pytest.mark.parametrize("arguments, says", [
    ([], "no verb"), (["atend"], ["atend", "attend"]), (["--versio"], ["--versio", "--version"]),
    (["explain"], "PROBLEM"), (["explain", "fwd s8", "fwd s9"], "one"),
    (["explain", "fwd s8 d0"], "head_dim"), (["explain", "fwd s8 cusal"], ["cusal", "causal"]),
    (["explain", "fwd s8", "--device", "h20"], ["h20", "h200"]),
    (["explain", "fwd s8", "--svg", "none/a.svg"], "none"),
    (["explain", "fwd s8", "--svg", ""], "--svg"), (["explain", "fwd s8", "--jsn"], "--json"),
    (["check"], "PROBLEM"), (["check", "fwd s8", "--backend", "fast"], ["fast", "reference"]),
    (["check", "fwd s8", "--seed", "-1"], "--seed"),
    (["check", "bwd sq1 sk1073741825 d8", "--backend", "cpu"],
     ["nothing can be checked", "cpu.forward: "]),
    (["check", "fwd s8", "bwd s8 dbias"], "bias"),
    (["explain", "fwd s8", "--json", "--json"], ["--json", "once"]),
    (["explain", "fwd s8", "--json=3"], ["--json", "no value"]),
    (["explain", "fwd s8", "--device", ""], ["--device", "empty"]),
    (["explain", "fwd s8", "--svg", "none/a.svg"], ["--svg", "none"]),
    (["explain", "fwd s8 chunk:0"], ["chunk:0", "leave the word out"]),
    (["explain", "fwd s8 softcap:0"], ["softcap:0", "leave the word out"]),
    (["explain", "fwd s8 dropout:0"], ["dropout:0", "leave the word out"]),
    (["explain", "fwd s8 nondeterministic"], ["deterministic", "backward"]),
    (["ladder", "fwd s64", "--fast-memory", "99999999999999999999"], "--fast-memory"),
    (["ladder", "fwd s64", "--fast-memory", "1k"], ["--fast-memory", "1k"]),
    (["ladder", "--json=1"], "--json"), (["ladder", "--device", ""], "--device"),
    (["bench", "fwd s64", "--threads", "0"], ["--threads", "4096"]),
    (["bench", "fwd s64", "--min-time", ""], "--min-time"),
    (["bench", "fwd s64", "--min-time="], "--min-time"),
    (["bench", "fwd s64", "--max-time", "1e400"], ["--max-time", "1e400"]),
    (["bench", "fwd s64", "--max-time", "3601"], ["--max-time", "3601"]),
    (["bench", "fwd s64", "--isa", ""], "--isa"), (["bench", "fwd s64", "--isa", "x"], "--isa"),
    (["bench", "fwd s64", "--backend", "fast"], ["--backend", "fast"]),
    (["bench", "fwd s64", "--backend", "cudax"], ["--backend", "'cudax' is not an implementation", "cuda.rows"]),
    (["bench", "fwd s64", "--backend", "cuda.bogus"], ["'cuda.bogus' is not an implementation", "cuda.rows"]),
    (["bench", "fwd s64", "--backend", "cuda.sm90"], ["'cuda.sm90' is not an implementation", "cuda.rows"]),
    (["check", "fwd s64", "--backend", "cudax"], ["'cudax' is not an implementation", "cuda.rows"]),
    (["explain", "s.txt"], ["PROBLEM: 's.txt'", "suite", "takes none"]),
    (["check", "fwd", "s8", "a/s.txt"], ["PROBLEM: 'a/s.txt'", "suite", "takes none"]),
    (["check", "a/s.txt"], ["PROBLEM: 'a/s.txt'", "suite", "takes none"]),
    (["bench", "fwd s64", "--pages", "4k"], ["--pages", "4k", "small or huge"]),
    (["bench", "fwd s64", "--layout", "sbhd"], ["--layout", "sbhd", "bshd or bhsd"]),
    (["bench", "fwd s64", "--backend", "reference", "--threads", "3"], "--threads"),
    (["bench", "fwd s64", "--backend", "reference", "--isa", "scalar"], "--isa"),
    (["bench", "fwd s64", "bwd sq1 sk1073741825 d8"], ["--backend", "bwd b1 sq1"]),
    (["bench", "fwd s64", "fwd s8 d0"], "head_dim"), (["bench"], "PROBLEM"),
    (["bench", "fwd s64", "--knob", "block_m"], "NAME=VALUE"),
    (["bench", "fwd s64", "--knob", "blok_m=1"], ["blok_m", "did you mean 'block_m'"]),
    (["bench", "fwd s64", "--knob", "block_m=32", "--knob", "block_m=64"], ["twice", "'32'", "'64'"]),
    (["bench", "fwd s64", "--knob", "num_threads=2", "--threads", "1"],
     ["--knob: 'num_threads' is given twice", "'1'", "'2'"]),
    (["bench", "fwd s64", "--knob", "isa=foo"], ["--knob: isa='foo' cannot be read; give one of scalar, "]),
    (["bench", "fwd s64", "--knob", "block_m=99999999999"], ["--knob: block_m='99999999999'", "32 bits"]),
    (["bench", "/tmp"], ["'/tmp'", ".txt"]), (["bench", "none.txt"], "none.txt"),
    (["compile", "/tmp"], ["'/tmp'", ".txt"]), (["compile", "none.txt"], "none.txt"),
    (["explain", "fwd s8", "--device", "H200"], ["--device: 'H200'", "did you mean 'h200'?"]),
    (["explain", "fwd b0 s8", "--svg", "a.svg", "--sequence", "0"], ["--sequence", "none to draw"]),
    (["explain", "fwd s8", "--svg", "a" * 300], ["--svg", "300 bytes", "255"]),
    (["explain", 'fwd s8 mask_mod:"q<a" scalar:a', "--svg", "a.svg", "--scalar", "a=1", "--scalar", "a=2"],
     ["--scalar", "'a' is given twice"]),
    (["bench", "fwd s64", "--against"], ["--against needs a value, METHOD", "bench --help"]),
    (["bench", "fwd s9000000 h64"], ["memory: the tensors of 'fwd ", "GiB"]),
    (["check", "fwd s900000 h64 bias"], ["memory: the tensors of 'fwd ", "GiB"]),
    (["selftest", "--seconds", "0"], "--seconds"), (["doctor", "now"], "now"),
    (["compile"], "PROBLEM"), (["compile", "fwd s8 d0"], "head_dim"),
    (["compile", "fwd s8", "--arch", "sm_90"], ["--arch", "'sm_90'", "sm_90a"]),
    (["compile", "fwd s8", "--arch", "80"], ["--arch", "'80'", "sm_80"]),
    (["compile", "fwd s8 bf16", "--arch", "sm_61"], ["sm_90 alone", "runs on sm_70 and newer", "sm_61"]),
    (["compile", "fwd s8 d8 fp8_e4m3"], ["no kernel", "NVIDIA H200"]),
    (["cache"], "list, verify, clear, pack"), (["cache", "lst"], ["lst", "verify"]),
    (["cache", "list", "clear"], "list clear"), (["cache", "pack"], "-o"),
    (["cache", "list", "-o", "x"], "-o"), (["cache", "clear", "--json"], "--json")])
def test_bad_use_is_one_sentence(sirdar, arguments, says):
    sirdar.refused(*arguments, says=says)


def test_a_bad_line_of_a_suite_is_named(sirdar):
    (sirdar.folder / "s.txt").write_text("# sizes\nfwd s64\n\nfwd s-1\n")
    sirdar.refused("bench", "s.txt", says=["s.txt:4: ", "s-1"])
    (sirdar.folder / "s.txt").write_text("fwd s64\nfwd s64 d600\n")
    sirdar.refused("bench", "s.txt", says=["s.txt:2: ", "600"])


@pytest.mark.parametrize("verb", ["bench", "compile"])
def test_what_is_no_suite_is_said(sirdar, verb):
    for folder in ("kernels", "d", "suite.txt"):
        (sirdar.folder / folder).mkdir()
    (sirdar.folder / "problems").write_text("fwd s64\n")
    (sirdar.folder / "comments.txt").write_text("# fwd s64\n\n  # more\n")
    (sirdar.folder / "empty.txt").write_text("")
    os.mkfifo(sirdar.folder / "pipe.txt")
    for word in ("kernels", "d", "problems"):
        sirdar.refused(verb, word, says=[f"'{word}' is neither a problem string nor a suite", ".txt"])
    sirdar.refused(verb, "suite.txt", says="suite.txt is a directory")
    sirdar.refused(verb, "pipe.txt", says="pipe.txt is no regular file")
    sirdar.refused(verb, "comments.txt", says=["comments.txt has no problem in its 3 lines", "only comments"])
    sirdar.refused(verb, "empty.txt", says="empty.txt has no problem in its 0 lines;")
    # A mark of an editor and the line ends of another system are no part of a problem.
    (sirdar.folder / "marked.txt").write_bytes(b"\xef\xbb\xbf# sizes\r\nfwd s64\r\nfwd s-1\r\n")
    sirdar.refused(verb, "marked.txt", says="marked.txt:3: problem: 's-1'")
    (sirdar.folder / "marked.txt").write_bytes(b"\xef\xbb\xbffwd s-1")
    sirdar.refused(verb, "marked.txt", says="marked.txt:1: problem: 's-1' at column 5")
    sirdar.refused(verb, "kernls", says="kernls")  # nothing of that name: the problem string's own words


@pytest.mark.parametrize("arguments", [
    ["--help"], ["--version"], ["doctor"], ["explain", "fwd s8"], ["explain", "fwd s8", "--json"],
    ["check", "fwd s8 d8"], ["bench", "fwd s64", "--min-time", "0", "--max-time", "0"],
    ["bench", "fwd s64", "--json", "--min-time", "0", "--max-time", "0"], ["ladder", "fwd s64 d8"],
    ["ladder", "fwd s64 d8", "--json"], ["selftest", "--seconds", "1"], ["cache", "list"],
    ["cache", "verify"], ["attend", "--help"]])
def test_output_that_nobody_gets_is_no_success(sirdar, arguments):
    env = {**os.environ, "SIRDAR_CACHE_DIR": str(sirdar.folder / "cache")}
    for shell, reason in ((">/dev/full", "No space left"), (">&-", "Bad file descriptor")):
        result = subprocess.run(["sh", "-c", f'"$@" {shell}', "sh", binary(), *arguments], text=True,
                                stderr=subprocess.PIPE, env=env, cwd=sirdar.folder, timeout=300)
        assert result.returncode == 2, (arguments, shell, result.stderr)
        assert result.stderr == (f"sirdar: standard output could not be written ({reason}"
                                 f"{' on device' if 'space' in reason else ''}); send it elsewhere.\n")


@pytest.mark.parametrize("arguments, code", [
    (["bench", "fwd s-16"], 2), (["explain"], 2), (["nothing"], 2), (["--nothing"], 2),
    (["compile", "fwd s8 d8 fp8_e4m3"], 2), (["cache", "verify"], 2), (["ladder", "--device", ""], 2),
    # A note: the tiles that only the data tell.
    (["explain", "fwd s64 document", "--svg", "map.svg"], 0)])
def test_standard_error_that_nobody_gets_changes_no_code(sirdar, arguments, code):
    env = {**os.environ, "SIRDAR_CACHE_DIR": "/dev/null"}
    for shell in ("2>&-", "2>/dev/full"):
        result = subprocess.run(["sh", "-c", f'"$@" {shell}', "sh", binary(), *arguments], env=env,
                                stdout=subprocess.PIPE, cwd=sirdar.folder, timeout=60)
        assert result.returncode == code, (arguments, shell)


def test_a_closed_stream_is_no_file_of_ours(sirdar):
    """The next file to be opened has the lowest number that is free, which would be a stream's."""
    command = '"$@" <&- >&- 2>&-'
    subprocess.run(["sh", "-c", command, "sh", binary(), "explain", "fwd s8", "--svg", "map.svg"],
                   cwd=sirdar.folder, timeout=60)
    for file in sirdar.folder.iterdir():
        assert "problem  " not in file.read_text()


def test_a_reader_that_leaves_leaves_no_files(sirdar):
    reader, writer = os.pipe()
    os.close(reader)
    for arguments in (["explain", "fwd s8", "--svg", "map.svg"], ["--help"], ["ladder", "fwd s64 d8"]):
        result = subprocess.run([binary(), *arguments], cwd=sirdar.folder, stdout=writer,
                                stderr=subprocess.PIPE, text=True, timeout=60)
        assert (result.returncode, result.stderr) == (-signal.SIGPIPE, "")
    os.close(writer)
    assert list(sirdar.folder.iterdir()) == []


def test_a_bound_is_said_only_where_it_is_one(sirdar):
    for words, exact in (("", True), ("window:9,0", True), ("document", False), ("mask", False),
                         ("bias", False), ('mask_mod:"q<k"', False), ("seqused_k", False)):
        problem = f"fwd s512 h4 d64 bf16 {words}"
        found = json.loads(sirdar.ok("explain", problem, "--device", "h200", "--json").out)
        text = sirdar.ok("explain", problem, "--device", "h200").out
        assert found["is_exact"] == exact == (found["roofline_seconds"] is not None)
        assert exact == ("ms at least" in text) == ("not known: what lengths" not in text)
        assert exact == ("at most " not in text and "about " not in text)
    # One row of 512 keys sees 10: two rows of 64 numbers of 2 bytes, and 10 of K and of V.
    found = json.loads(sirdar.ok("explain", "fwd sq1 sk512 d64 bf16 window:9,0", "--device", "h200", "--json").out)
    assert found["bytes"] == 2 * 64 * (2 + 2 * 10)
    assert found["roofline_seconds"] == pytest.approx(found["bytes"] / 4.8e12)


def bench(sirdar, problem, *flags):
    return json.loads(sirdar.ok("bench", problem, "--json", "--min-time", "0", "--max-time", "1", *flags).out)


@pytest.mark.parametrize("words", ["document", "mask", "bias", "seqused_k", "ragged", "window:3,0",
                                   'mask_mod:"q - k < 5"', 'mask_mod:"k < n[q]" tensor:n:int32:1'])
def test_hidden_pairs_are_no_work(sirdar, words):
    row = bench(sirdar, f"fwd s256 h2 d64 {words}")
    whole = 4 * 64 * 2 * 256 * 256
    done = row["tflops"] * 1e9 * row["median_ms"]
    assert row["is_exact"] and row["roofline_percent"] < 110
    share = {"document": 0.3, "mask": 0.9, "window:3,0": 4 / 256, 'mask_mod:"q - k < 5"': 0.53,
             'mask_mod:"k < n[q]" tensor:n:int32:1': 0.03}.get(words, 1.001)  # of about
    assert whole * share * 0.3 < done < whole * share * 1.1


def test_the_cpu_has_both_passes(sirdar):
    assert bench(sirdar, "fwd s64 d8", "--backend", "cpu")["implementation"] == "cpu.forward"
    assert bench(sirdar, "bwd s64 d8", "--backend", "cpu")["implementation"] == "cpu.backward"


def test_what_could_not_be_counted_has_no_share(sirdar):
    # 10^8 pairs of two heads, each decided alone.
    row = bench(sirdar, 'fwd s7100 h2 d8 mask_mod:"(q*7+k*3+h)%5<2"')
    assert row["is_exact"] is False
    assert row["tflops"] is row["gbytes_per_s"] is row["roofline_percent"] is None


def test_a_benchmark_is_of_the_knobs_given(sirdar):
    row = bench(sirdar, "fwd s64 d64", "--knob", "isa=scalar", "--knob", "num_threads=1", "--backend", "cpu")
    assert row["isa"] == "scalar" and row["threads"] == 1 and "isa=scalar" in row["config"]


def test_many_threads_read_no_more_memory(sirdar):
    process = subprocess.Popen([binary(), "bench", "fwd s64 d64", "--threads", "200", "--min-time", "0",
                                "--max-time", "0"], stdout=subprocess.DEVNULL, cwd=sirdar.folder)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert usage.ru_maxrss << 10 < 6 << 30  # 128 MiB for each would be 25 GiB


def test_a_benchmark_counts_the_tensors_of_all_its_runs(sirdar):
    free = int(re.search(r"MemAvailable: *(\d+)", open("/proc/meminfo").read())[1]) << 10
    rows = free // 2 // (4 * 64 * 64 * 4)  # half of what is free, three times
    sirdar.refused("bench", f"fwd s{rows} h64 d64", says=["memory: the tensors of 'fwd ", "made 3 times"])


@pytest.mark.parametrize("problem", ["fwd b2147483647 s0", "bwd b2147483647 s0",
                                     "fwd b2147483647 hq8 hkv2 sq0 sk0 causal lse"])
def test_nothing_to_compute_takes_no_time(sirdar, problem):
    start = time.monotonic()
    sirdar.ok("check", problem)
    assert time.monotonic() - start < 10
    sirdar.ok("explain", problem)
    if problem.startswith("fwd"):
        sirdar.ok("bench", problem, "--min-time", "0", "--max-time", "1")
    assert time.monotonic() - start < 20


def test_explain_says_what_runs_and_why_not(sirdar):
    text = sirdar.ok("explain", "bwd b2 sq64 sk64 hq4 hkv2 d64 causal").out
    assert "cpu.backward" in text and "cpu.forward: does not understand backward" in text
    text = sirdar.ok("explain", "bwd sq1 sk1073741825 d8").out
    assert "reference" in text and "cpu.backward" in text
    assert "cpu.forward" in sirdar.ok("explain", "fwd", "s64", "d64").out
    assert "none" in sirdar.ok("explain", "fwd s64 d64 bf16", "--device", "h200").out


def test_explain_json(sirdar):
    found = json.loads(sirdar.ok("explain", "fwd b2 sq100 sk100 hq4 hkv2 d64 causal", "--json").out)
    assert found["chosen"] == "cpu.forward" and "isa=" in found["config"]
    assert found["flops"] == 2 * 4 * (100 * 101 / 2) * 4 * 64
    # q, out: [2, 100, 4, 64]; k, v: [2, 100, 2, 64], all fp32
    assert found["bytes"] == 4 * 2 * 100 * 64 * (4 + 4 + 2 + 2)
    assert found["device"] and found["workspace_bytes"] >= 0 and found["refusals"] is not None
    found = json.loads(sirdar.ok("explain", "fwd s64 d64 bf16", "--device", "h200", "--json").out)
    assert found["chosen"] == "cuda.sm90.forward"
    found = json.loads(sirdar.ok("explain", "fwd s64 d64 fp32", "--device", "h200", "--json").out)
    assert found["chosen"] == "cuda.rows.forward"
    found = json.loads(sirdar.ok("explain", "fwd s64 d64 fp8_e4m3", "--device", "h200", "--json").out)
    assert found["chosen"] is None
    refused = {r["implementation"] for r in found["refusals"]}
    assert refused >= {"cuda.sm90.forward", "cuda.rows.forward", "cpu.forward", "reference"}
    assert all(len(r["reason"]) > 4 for r in found["refusals"])


def drawn(sirdar, *arguments):
    sirdar.ok("explain", *arguments, "--svg", "map.svg")
    root = ElementTree.parse(sirdar.folder / "map.svg").getroot()
    assert root.find(f"{SVG}title").text.startswith("Tile map of ")
    text = " ".join("".join(t.itertext()) for t in root.iter(f"{SVG}text"))
    counts = {word: int(re.search(rf"{word}: [^(]*\((\d+) of", text).group(1)) for word in COLORS}
    cells = root.find(f"{SVG}g")
    drawn_colors = {r.get("fill") for r in cells.iter(f"{SVG}rect")}
    for word, color in COLORS.items():
        assert (counts[word] > 0) == (color in drawn_colors)
    return counts, text


def test_the_tile_map(sirdar):
    counts, text = drawn(sirdar, "fwd s512 d64 causal", "--device", "h200")  # tiles of 64
    assert counts == {"empty": 28, "part": 8, "full": 28}
    assert "key position" in text and "query row" in text and "512" in text
    counts, _ = drawn(sirdar, "fwd s512 d64", "--device", "h200")
    assert counts == {"empty": 0, "part": 0, "full": 64}
    counts, _ = drawn(sirdar, "fwd s256 d64 window:63,0", "--device", "h200")
    assert counts == {"empty": 9, "part": 7, "full": 0}
    counts, _ = drawn(sirdar, 'fwd s256 d64 mask_mod:"k < 64"', "--device", "h200")
    assert counts == {"empty": 12, "part": 0, "full": 4}


@pytest.mark.parametrize("problem", [
    "fwd s512 d64 causal", 'fwd s512 d64 mask_mod:"q>=k"', 'fwd s512 d64 mask_mod:"q<0"',
    "fwd s512 d64 document", "fwd s512 d64 mask causal", "fwd s512 d64 bias window:63,0"])
def test_map_and_counts_agree(sirdar, problem):
    counts, _ = drawn(sirdar, problem, "--device", "h200")
    found = json.loads(sirdar.ok("explain", problem, "--device", "h200", "--json").out)
    assert counts == {word: found["tiles"][word] for word in COLORS}
    told = "document" not in problem and "mask causal" not in problem and "bias" not in problem
    assert (found["tiles"]["only_data_tell"] == []) == told
    assert told or counts["full"] == 0
    assert found["is_exact"] == (problem == "fwd s512 d64 causal")


def test_a_large_tile_map_joins_tiles(sirdar):
    counts, text = drawn(sirdar, "fwd s16384 d64 causal", "--device", "h200")  # 256 x 256 tiles
    assert counts == {"empty": 8128, "part": 128, "full": 8128} and "2 x 2 tiles" in text
    assert (sirdar.folder / "map.svg").stat().st_size < 200_000


def test_the_tile_map_says_what_it_cannot_know(sirdar):
    result = sirdar.ok("explain", "fwd s128 d64 mask document", "--svg", "map.svg")
    assert "mask tensor" in result.err and "document" in result.err
    assert "mask tensor" in (sirdar.folder / "map.svg").read_text()
    result = sirdar.ok("explain", 'fwd s128 d64 mask_mod:"k < n" scalar:n', "--svg", "map.svg")
    assert "mask_mod" in result.err
    root = ElementTree.parse(sirdar.folder / "map.svg").getroot()  # '<' and '"' are escaped
    assert '"k < n"' in root.find(f"{SVG}title").text


def test_check(sirdar):
    out = sirdar.ok("check", "fwd", "sq33", "sk65", "d32", "causal", "lse", "bwd", "s17", "d8",
                    "--seed", "5").out
    assert "seed 5" in out and "4 of 4 ok" in out
    assert re.search(r"cpu\.forward +ok", out) and re.search(r"cpu\.forward +refused", out)
    only = sirdar.ok("check", "fwd s33 d32", "--backend", "reference").out
    assert "cpu.forward" not in only and "1 of 1 ok" in only


def test_doctor(sirdar):
    out = sirdar.ok("doctor", env={"SIRDAR_NUM_THREADS": "1"}).out
    for word in ("sirdar ", "cpu ", "isa ", "caches ", "threads      1\n", "gpu ", "nvrtc ", "kernels ",
                 "cpu.forward", "cpu.backward", "SIRDAR_NUM_THREADS=1"):
        assert word in out, word


def test_doctor_and_explain_say_why_cuda_is_not_used(sirdar):
    cache = sirdar.folder / "cache"
    out = sirdar.ok("doctor", env={"SIRDAR_CACHE_DIR": str(cache), "SIRDAR_NO_JIT": "1"}).out
    assert f"kernels      {cache}, 0 kernels" in out and "SIRDAR_NO_JIT=1" in out
    nowhere = {"SIRDAR_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": ""}
    assert "kernels      none; neither SIRDAR_CACHE_DIR nor HOME" in sirdar.ok("doctor", env=nowhere).out
    decided = json.loads(sirdar.ok("explain", "fwd s64 d64 bf16", "--json").out)
    reason = decided["cuda"]
    assert reason.startswith("not used: ") and ("driver" in reason or "--device cuda" in reason)
    assert f"cuda            {reason}\n" in sirdar.ok("explain", "fwd s64 d64 bf16").out
    elsewhere = json.loads(sirdar.ok("explain", "fwd s64 d64 bf16", "--device", "h200", "--json").out)
    assert elsewhere["cuda"] is None


@pytest.mark.parametrize("name, value", [
    ("SIRDAR_NUM_THREADS", "abc"), ("SIRDAR_NUM_THREADS", "0"), ("SIRDAR_LOG", "banana"),
    ("SIRDAR_NO_JIT", "yes")])
def test_switches_of_the_environment_are_checked(sirdar, name, value):
    for arguments in (["doctor"], ["explain", "fwd s8"], ["check", "fwd s8"]):
        result = sirdar(*arguments, env={name: value})
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith(f"sirdar: {name}: '{value}' is not ")
    assert sirdar.ok("--help", env={name: value})


def test_an_unknown_implementation_is_no_machine_where_nothing_runs(sirdar):
    for arguments in (["doctor"], ["explain", "fwd s8"]):
        result = sirdar(*arguments, env={"SIRDAR_FORCE": "fast"})
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith("sirdar: SIRDAR_FORCE: 'fast' is not an implementation")
    assert "fp32       reference" in sirdar.ok("doctor", env={"SIRDAR_FORCE": "reference"}).out


def test_selftest(sirdar):
    result = sirdar.ok("selftest", "--seconds", "3")
    found = re.fullmatch(r"ok: (\d+) of (\d+) problems(?: \(more .*\))?, (\d+) checks, 0 failed, "
                         r"\d+ refused .*\n",
                         result.out)
    assert found, result.out
    tried, problems, checks = map(int, found.groups())
    assert 0 < tried <= problems and checks >= tried
    assert result.err == ""  # no progress where nobody watches


def read_terminal(primary):
    try:
        return os.read(primary, 1 << 16).decode()
    except OSError:  # the other end is closed and everything has been read
        return ""


def test_progress_only_on_a_terminal(sirdar):
    primary, secondary = pty.openpty()
    process = subprocess.run([binary(), "selftest", "--seconds", "1"], stdout=subprocess.PIPE,
                             stderr=secondary, text=True)
    os.close(secondary)
    shown = ""
    while part := read_terminal(primary):  # one read need not return all that was written
        shown += part
    os.close(primary)
    assert process.returncode == 0 and "selftest" in shown and shown.endswith("\r\x1b[K")
