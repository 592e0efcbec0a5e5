"""`sirdar compile` and `sirdar cache`: kernels on a machine without a GPU."""

import hashlib
import json
import os
import time

import pytest
from conftest import Runner

NAME = "0" * 64 + "-nvrtc13.0"
REPORT = """entry sirdar_fwd_test
arch sm_90a
nvrtc 13.0
problem fwd b1 sq8 sk8 hq1 hkv1 d64 bf16
options -std=c++20
threads 128
registers 90
spill_store_bytes 0
spill_load_bytes 0
stack_bytes 0
static_shared_bytes 0
shared_bytes 1024
compile_ms 300
cpu_ms 290
cubin_bytes 4
"""


def write_entry(folder, name=NAME):
    """An entry as docs/jit.md describes it."""
    entry = folder / name
    entry.mkdir(parents=True)
    files = {"kernel.cubin": b"code", "kernel.cu": b"text", "report.txt": REPORT.encode()}
    digest = name + "\n"
    for file, content in files.items():
        (entry / file).write_bytes(content)
        digest += f"{hashlib.sha256(content).hexdigest()} {file}\n"
    (entry / "digest.txt").write_text(digest)
    return entry


@pytest.fixture
def cache(sirdar):
    """Runs the command with a cache of its own."""
    folder = sirdar.folder / "cache"

    def run(*arguments, code=0, dirs=folder):
        result = sirdar(*arguments, env={"SIRDAR_CACHE_DIR": str(dirs)})
        assert result.code == code, (arguments, result.out, result.err)
        return result

    run.folder = folder
    run.root = sirdar.folder
    return run


def test_an_empty_cache_is_no_error(cache):
    assert cache("cache", "list").out == f"0 kernels in {cache.folder}\n"
    assert cache("cache", "list", "--json").out == ""
    # Nothing could be verified there.
    assert cache("cache", "verify", code=1).out == (f"does not exist: {cache.folder}\n"
                                                    "0 of 0 kernels are as they were written\n")
    assert cache("cache", "clear").out == f"0 kernels removed from {cache.folder}\n"
    assert not cache.folder.exists()
    # It is made when it is needed; a pack is not.
    out = cache("cache", "list", dirs=f"{cache.folder}:{cache.root}/pack").out
    assert out == f"0 kernels in {cache.root}/pack, which does not exist\n0 kernels in {cache.folder}\n"


def test_list_shows_what_a_kernel_takes(cache):
    write_entry(cache.folder)
    out = cache("cache", "list").out
    for word in ("000000000000", "sirdar_fwd_test", "sm_90a", "NVRTC 13.0", "90 registers", "d64 bf16",
                 f"1 kernel in {cache.folder}"):
        assert word in out, word
    row = json.loads(cache("cache", "list", "--json").out)
    assert row["is_valid"] and row["entry"] == NAME and row["registers"] == 90
    assert row["shared_bytes"] == 1024 and row["problem"].startswith("fwd b1")


def test_verify_names_what_is_damaged(cache):
    write_entry(cache.folder)
    damaged = write_entry(cache.folder, "1" * 64 + "-nvrtc13.0")
    (damaged / "kernel.cubin").write_bytes(b"coda")
    out = cache("cache", "verify", code=1).out
    assert f"damaged: {damaged}\n" in out and "1 of 2 kernels" in out
    assert "damaged" in cache("cache", "list").out
    # A pack takes only what is whole.
    pack = cache.root / "pack"
    assert cache("cache", "pack", "-o", pack).out.startswith(f"1 kernel packed into {pack}")
    assert sorted(os.listdir(pack)) == [NAME]
    out = cache("cache", "verify", dirs=f"{cache.root}/none:{pack}", code=1).out
    assert out.startswith(f"does not exist: {cache.root}/none\n1 of 1")
    assert cache("cache", "pack", "-o", cache.folder, code=2).err.startswith("sirdar: -o: ")


def test_clear_leaves_packs_and_strangers(cache):
    write_entry(cache.folder)
    write_entry(cache.root / "pack")
    (cache.folder / "mine.txt").write_text("mine")
    dirs = f"{cache.folder}:{cache.root}/pack"
    assert cache("cache", "clear", dirs=dirs).out == f"1 kernel removed from {cache.folder}\n"
    assert os.listdir(cache.folder) == ["mine.txt"]
    assert os.listdir(cache.root / "pack") == [NAME]


def test_what_is_foreign_in_a_cache_is_named(cache):
    write_entry(cache.folder)
    for name in ("mine.txt", "photos", "1.lock"):
        (cache.folder / name).mkdir()
    # Locks and entries that are being written are the cache's own.
    (cache.folder / "tmp-1-aaaaaa").mkdir()
    (cache.folder / f"{NAME}.lock").write_text("")
    out = cache("cache", "list").out
    assert out.endswith(f"1 kernel in {cache.folder}; 3 other names, not of the cache: 1.lock, mine.txt, photos\n")
    out = cache("cache", "verify").out  # exit code 0: no kernel is damaged
    for name in ("mine.txt", "photos", "1.lock"):
        assert f"not of the cache: {cache.folder}/{name}\n" in out
    assert out.count("not of the cache") == 3 and out.endswith("1 of 1 kernels are as they were written\n")
    rows = [json.loads(line) for line in cache("cache", "list", "--json").out.splitlines()]
    assert rows[0]["entry"] == NAME and rows[0]["is_valid"]
    assert rows[1:] == [{"directory": str(cache.folder), "foreign": name}
                        for name in ("1.lock", "mine.txt", "photos")]


def test_names_of_files_are_shown_on_one_line(cache):
    cache.folder.mkdir()
    (cache.folder / "red\x1b[31m\nline").mkdir()
    assert cache("cache", "list").out.endswith("not of the cache: red\\x1b[31m line\n")
    assert cache("cache", "verify").out.startswith(f"not of the cache: {cache.folder}/red\\x1b[31m line\n")
    assert cache("cache", "list", "--json").out.count("\n") == 1


def test_a_folder_named_twice_is_counted_once(cache):
    write_entry(cache.folder)
    (cache.root / "link").symlink_to(cache.folder)
    for dirs in (f"{cache.folder}:{cache.folder}", f"{cache.folder}:{cache.root}/link:{cache.folder}/"):
        assert cache("cache", "verify", dirs=dirs).out == "1 of 1 kernels are as they were written\n"
        out = cache("cache", "list", dirs=dirs).out
        assert out.count("000000000000") == 1 and out.count("1 kernel in ") == 1


def test_clear_leaves_what_is_being_written(cache):
    write_entry(cache.folder)
    for name, hours in (("tmp-1-aaaaaa", 1), ("tmp-1-bbbbbb", 25)):
        (cache.folder / name).mkdir()
        then = time.time() - 3600 * hours
        os.utime(cache.folder / name, (then, then))
    assert cache("cache", "clear").out == f"1 kernel removed from {cache.folder}\n"
    assert os.listdir(cache.folder) == ["tmp-1-aaaaaa"]


def test_what_is_no_cache_is_said(cache):
    for word in ("list", "verify", "clear"):
        (cache.root / "file").write_text("")
        for dirs in ("file", "file/cache", f"{cache.folder}:{cache.root}/file"):
            err = cache("cache", word, dirs=dirs, code=2).err
            assert err.startswith("sirdar: cache: ") and "file" in err and "SIRDAR_CACHE_DIR" in err


def test_a_pack_that_cannot_be_is_said(cache):
    assert "no whole kernel is in" in cache("cache", "pack", "-o", cache.root / "pack", code=2).err
    write_entry(cache.folder)
    (cache.root / "file").write_text("")
    for output in (cache.root / "file", cache.root / "file/pack", "/proc/pack", "/dev/full"):
        err = cache("cache", "pack", "-o", output, code=2).err
        assert err.startswith(f"sirdar: -o: {output} cannot be written (") and "cache_dir" not in err
        assert err.endswith("name a directory that can.\n")
    assert sorted(os.listdir(cache.root)) == ["cache", "file"]
    # Folders on the way are made.
    cache("cache", "pack", "-o", cache.root / "a/b")
    assert os.listdir(cache.root / "a/b") == [NAME]


@pytest.mark.parametrize("arch", ["sm_70", "sm_72", "sm_91a", "sm_99a", "sm_200a"])
def test_an_architecture_that_nvrtc_does_not_know(cache, arch):
    if "nvrtc        13." not in cache("doctor").out:
        pytest.skip("NOT TESTED: no NVRTC 13 here; ./dev setup installs it and ./dev test finds it")
    err = cache("compile", "fwd s64 d64 bf16", "--arch", arch, code=2).err
    assert err.startswith(f"sirdar: --arch: {arch} is none that NVRTC 13.") and "sm_80" in err
    assert len(err.splitlines()) == 1 and "error" not in err and "option" not in err


def test_a_kernel_folder_that_is_none(cache):
    for folder in ("none", "file", "."):
        (cache.root / "file").write_text("")
        result = Runner(cache.root)("compile", "fwd s64 d64 bf16", env={
            "SIRDAR_CACHE_DIR": str(cache.folder), "SIRDAR_KERNEL_DIR": folder})
        assert result.code == 2 and result.out == ""
        assert result.err.startswith("sirdar: kernel_dir: " + folder) and "SIRDAR_KERNEL_DIR" in result.err


def test_compile_says_what_a_kernel_takes_and_keeps_it(cache):
    if "nvrtc        none" in cache("doctor").out:
        pytest.skip("NOT TESTED: no NVRTC here; ./dev setup installs it and ./dev test finds it")
    problem = "fwd b1 s256 h2 d128 bf16 causal"
    made = json.loads(cache("compile", problem, "--json").out)
    assert made["origin"] == "compiled" and made["arch"] == "sm_90a"
    assert made["implementation"] == "cuda.sm90.forward" and made["kernel"].startswith("sirdar_fwd_bf16_d128")
    assert made["spill_store_bytes"] == made["spill_load_bytes"] == 0 and made["remarks"] == []
    assert 0 < made["registers"] <= 255 and 0 < made["shared_bytes"] <= 232448
    assert made["compile_ms"] > 0 and made["cubin_bytes"] > 1000
    assert os.listdir(cache.folder) == [made["entry"]]
    # Other lengths and heads are the same kernel, and another process finds it.
    other = json.loads(cache("compile", "fwd b3 s4096 h4 d128 bf16 causal", "--json").out)
    assert other["origin"] == "cache" and other["entry"] == made["entry"]
    table = cache("compile", problem).out
    assert made["kernel"] in table and table.splitlines()[1].endswith("cache")


def test_compile_fails_for_spills_that_are_not_known(cache):
    if "nvrtc        none" in cache("doctor").out:
        pytest.skip("NOT TESTED: no NVRTC here; ./dev setup installs it and ./dev test finds it")
    made = json.loads(cache("compile", "fwd b1 s256 h2 d64 bf16", "--json").out)  # exit code 0
    assert made["spill_store_bytes"] <= made["spill_bytes_known"]
    # The report of an entry is what the compiler said; one byte too many is enough.
    report = cache.folder / made["entry"] / "report.txt"
    text = report.read_text()
    text = text.replace(f"spill_store_bytes {made['spill_store_bytes']}\n",
                        f"spill_store_bytes {made['spill_bytes_known'] + 1}\n")
    digest = report.with_name("digest.txt")
    digest.write_text(digest.read_text().replace(hashlib.sha256(report.read_bytes()).hexdigest(),
                                                 hashlib.sha256(text.encode()).hexdigest()))
    report.write_text(text)
    out = cache("compile", "fwd b1 s256 h2 d64 bf16", code=1).out
    known = made["spill_bytes_known"]
    assert f"stores {known + 1} bytes of spilled registers a thread; {known} are known" in out
