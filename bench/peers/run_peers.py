"""Runs voce and its peers in turn on the same random weights and keeps the raw numbers.

    python run_peers.py --model DIR --voce PATH --pocket-python PATH --ptts-python PATH --rounds 3

    VOCE_CPU=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python run_peers.py ... --what pocket-avx2

Every round starts each engine once, so that a change in the machine's clock or load meets all of them. An engine
that is not installed, or that refuses the model, is reported as skipped with its reason. The result goes to
bench/runs/<date>-<cpu>-<what>.json; the table shows medians over rounds and each peer's time against voce's.
"""

import argparse
import datetime
import json
import os
import re
import shlex
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What holds voce, PyTorch, oneDNN, MKL and FBGEMM to an instruction set.
LIMITS = ("VOCE_CPU", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "FBGEMM_ENABLE_INSTRUCTIONS")
KEYS = ("rtf_p50", "rtf_best", "frame_ms", "first_audio_ms", "peak_rss_mb", "cpu_s")


def machine() -> dict:
    text = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
    rows = dict(re.findall(r"^\s*([^:]+):\s*(.*)$", text, re.M))
    flags = rows.get("Flags", "").split()
    wanted = ("avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
    return {
        "cpu": rows.get("Model name", "unknown"),
        "cpu_family_model": f"{rows.get('CPU family')}/{rows.get('Model')}",
        "cpus": os.cpu_count(),
        "threads_per_core": rows.get("Thread(s) per core"),
        "l2": rows.get("L2 cache"),
        "l3": rows.get("L3 cache"),
        "flags": [f for f in wanted if f in flags],
        # All engines are held to one instruction set by these.
        "limited": {name: os.environ[name] for name in LIMITS if name in os.environ},
        "load_before": os.getloadavg(),
        "kernel": os.uname().release,
    }


def engines(a) -> dict[str, list[str]]:
    common = ["--tokens", str(a.tokens), "--frames", str(a.frames), "--repeats", str(a.repeats)]
    out = {}
    if a.voce:
        for threads in a.voce_threads:
            out[f"voce t{threads}"] = [
                a.voce, "bench", "say", "--model", a.model, "--frames", str(a.frames), "--threads", str(threads), "--json",
                *shlex.split(a.voce_args),
            ]  # fmt: skip
    if a.pocket_python:
        script = [a.pocket_python, str(HERE / "pocket_tts_python.py"), "--model", a.model, *common]
        out["pocket-tts"] = script
        out["pocket-tts int8"] = [*script, "--quantize"]
    if a.ptts_python:
        script = [a.ptts_python, str(HERE / "ptts_xn.py"), "--model", a.ptts_model or a.model, *common]
        for threads in a.voce_threads:
            out[f"ptts q8_0 t{threads}"] = [*script, "--threads", str(threads)]
    if a.cpp_binary:
        script = [a.cpp_python, str(HERE / "cpp_port.py"), "--binary", a.cpp_binary, "--models", a.cpp_models]
        script += ["--voice", str(Path(a.model) / "prompt.wav"), *common]
        for threads in a.voce_threads:
            out[f"C++ int8 t{threads}"] = [*script, "--threads", str(threads)]
    return out


def once(command: list[str], limit: float, more: dict[str, str] | None = None) -> dict:
    """One run in a process of its own, with `more` in its environment; its peak memory and CPU time come from the kernel."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        try:
            child = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=os.environ | (more or {}))
        except OSError as e:
            return {"skipped": f"cannot start {command[0]}: {e.strerror}"}
        end = time.monotonic() + limit
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                child.kill()
                os.wait4(child.pid, 0)
                return {"skipped": f"no answer in {limit:.0f} s"}
            time.sleep(0.05)
        child.returncode = os.waitstatus_to_exitcode(status)
        stdout.seek(0)
        stderr.seek(0)
        lines = [x for x in stdout.read().decode(errors="replace").splitlines() if x.startswith("{")]
        if child.returncode or not lines:
            said = [x.strip() for x in stderr.read().decode(errors="replace").splitlines() if x.strip()]
            said = [x for x in said if re.search(r"(?i)error|no module|not |invalid", x)] or said[-1:]
            return {"skipped": (said[-1] if said else f"exit status {child.returncode}")[:200]}
        row = json.loads(lines[-1])
        return row | {"peak_rss_mb": round(usage.ru_maxrss / 1024, 1), "cpu_s": round(usage.ru_utime + usage.ru_stime, 2)}


def table(results: dict[str, list[dict]]) -> list[dict]:
    rows = []
    for name, runs in results.items():
        good = [r for r in runs if "skipped" not in r]
        row = {"engine": name, "runs": len(good)}
        if not good:
            row["skipped"] = runs[0]["skipped"] if runs else "not asked for"
        for key in KEYS:
            values = [r[key]["p50"] if isinstance(r[key], dict) else r[key] for r in good if key in r]
            if values:
                row[key] = round(min(values) if key == "rtf_best" else statistics.median(values), 4)
        rows.append(row)
    ours = min((r for r in rows if r["engine"].startswith("voce") and "rtf_p50" in r), key=lambda r: r["rtf_p50"], default=None)
    for row in rows:
        if ours and "rtf_p50" in row:
            row["times_voce"] = round(row["rtf_p50"] / ours["rtf_p50"], 2)
            row["first_audio_times_voce"] = round(row["first_audio_ms"] / ours["first_audio_ms"], 2)
    return rows


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", required=True, help="a folder from reference/pocket/make_full.py")
    ap.add_argument("--ptts-model", help="the english_2026-01 folder, the only layout ptts reads")
    ap.add_argument("--voce", help="path of the voce binary")
    ap.add_argument("--voce-args", default="", help="more arguments, such as '--precision int8'")
    ap.add_argument("--voce-threads", type=int, nargs="+", default=[1, 2], help="thread counts for voce, ptts and the C++ port")
    ap.add_argument("--pocket-python", "--peer-python", dest="pocket_python", help="a python with requirements-pocket-tts.txt installed")
    ap.add_argument("--ptts-python", help="a python with requirements-ptts.txt installed")
    ap.add_argument("--cpp-binary", help="the PocketTTS.cpp program (cpp_port.md says how to build it)")
    ap.add_argument("--cpp-models", help="the folder of its exported models")
    ap.add_argument("--cpp-python", default="python3", help="a python with sentencepiece installed")
    ap.add_argument("--tokens", type=int, default=24)
    ap.add_argument("--frames", type=int, default=125)
    ap.add_argument("--repeats", type=int, default=3, help="timed runs inside one process")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--limit", type=float, default=300.0, help="seconds for one process")
    ap.add_argument("--what", help="default: pocket-<model folder>")
    ap.add_argument("--runs", type=Path, default=HERE.parent / "runs")
    a = ap.parse_args()
    if a.cpp_binary and not a.cpp_models:
        ap.error("--cpp-binary needs --cpp-models")
    a.model = str(Path(a.model).resolve())
    commands, host = engines(a), machine()
    missing = {"voce": a.voce, "pocket-tts": a.pocket_python, "ptts": a.ptts_python, "C++": a.cpp_binary}
    results: dict[str, list[dict]] = {k: [{"skipped": "no path given"}] for k, v in missing.items() if not v}
    results |= {name: [] for name in commands}
    for number in range(a.rounds):
        for name, command in commands.items():
            if results[name] and "skipped" in results[name][-1]:
                continue
            row = once(command, a.limit)
            results[name].append(row)
            print(f"round {number + 1} {name}: " + (row.get("skipped") or f"rtf {row['rtf_p50']}"), flush=True)
    host["load_after"] = os.getloadavg()
    rows = table(results)
    what = a.what or f"pocket-{Path(a.model).name}"
    cpu = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)|CPU|@.*", "", host["cpu"]).lower()).strip("-")
    a.runs.mkdir(parents=True, exist_ok=True)
    path = a.runs / f"{datetime.date.today()}-{cpu}-{what}.json"
    asked = {k: getattr(a, k) for k in ("tokens", "frames", "repeats", "rounds", "voce_args")}
    asked |= {"model": Path(a.model).name, "ptts_model": Path(a.ptts_model or a.model).name}
    path.write_text(json.dumps({"machine": host, "asked": asked, "table": rows, "runs": results}, indent=1) + "\n")
    head = ("engine", *KEYS, "times_voce", "first_audio_times_voce")
    print("\n" + "  ".join(f"{h:>16s}" for h in head))
    for row in rows:
        if "skipped" in row:
            print(f"{row['engine']:>16s}  skipped: {row['skipped']}")
        else:
            print("  ".join(f"{row.get(h, '-')!s:>16s}" for h in head))
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
