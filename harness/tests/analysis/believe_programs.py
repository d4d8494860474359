"""Stand-ins for the programs that scripts/maintain/believe runs, on the simulated machine, for its test:
`python believe_programs.py PROGRAM ARGUMENTS...` writes the records that the program would."""
import json
import os
import sys
import zlib

from synthetic import OPS, DecoderCase, Effect, KernelCase, Machine, write

from tokline.believe_collect import ROOT, units_of


def value_of(arguments, flag, default=None):
    return arguments[arguments.index(flag) + 1] if flag in arguments else default


def bench(kernel, arguments):
    if "--benchmark_list_tests=true" in arguments:
        shapes = json.loads((ROOT / "benches" / "shapes" / f"{kernel}.json").read_text())
        for _, entry in units_of(shapes):
            name = f"{kernel}/{entry['name']}/tokens:{entry['tokens'][0]}/cuda"
            print(f"{name}/plain\n{name}/dependent")
        return
    record = value_of(arguments, "--record")
    with open(value_of(arguments, "--shapes"), encoding="utf-8") as file:
        entries = [entry for family in json.load(file).values() for entry in family]
    percent = float(value_of(arguments, "--inject-slowdown", 0))
    cases = [KernelCase(kernel, (("name", entry["name"]), ("tokens", entry["tokens"][0])), 10.0 + index, chain=chain)
             for index, entry in enumerate(entries) for chain in ("plain", "dependent")]
    machine = Machine(seed=zlib.crc32(record.encode()), run_noise=0.001)
    write(record, machine.run(f"bench_{kernel}", cases, [Effect(percent)] if percent else [],
                              injected={"slowdown_percent": percent} if percent else None))


def tokline(arguments):
    if arguments == ["--version"]:
        print("tokline 0.1.0 (commit 0123, gcc)")
        return
    record = value_of(arguments, "--record")
    effects, injected = [], None
    if "--inject-host-delay" in arguments:
        injected = {"host_delay_us": float(value_of(arguments, "--inject-host-delay"))}
        effects = [Effect(us=injected["host_delay_us"], op="host_gap")]
    if "--inject-op-delay" in arguments:
        op, us = value_of(arguments, "--inject-op-delay").split(":")
        launches = next(count for name, _, count, _ in OPS if name == op)
        injected = {"op": op, "op_delay_us": float(us)}
        effects = [Effect(us=launches * float(us), op=op)]
    machine = Machine(seed=zlib.crc32(record.encode()), run_noise=0.0003)
    write(record, machine.decoder_run([DecoderCase()], effects, injected=injected))


def cheats_test(arguments):
    path = arguments[0].removeprefix("--gtest_output=json:")
    cases = [{"name": f"Cheat{number}", "result": "COMPLETED"} for number in range(20)]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"testsuites": [{"testsuite": cases}]}, file)


def store_kill_test(_):
    print(f"{os.environ['TOKLINE_STORE_KILLS']} kills of 8 writers at once, 5 lines acknowledged, 0 lost, 0 unreadable "
          "files")


def independent_timing_cuda_test(_):
    with open(os.environ["TOKLINE_INDEPENDENT_TIMING"], "a", encoding="utf-8") as file:
        for us in (2, 10, 100, 1000):
            print(json.dumps({"kernel": "paged_prefill", "shape": "s", "suite_us": us, "independent_us": us}), file=file)


OTHERS = {run.__name__: run for run in (tokline, cheats_test, store_kill_test, independent_timing_cuda_test)}


def main():
    program, *arguments = sys.argv[1:]
    if os.environ.get("BREAK") == program:
        sys.exit("this program is broken")
    if os.environ.get("REFUSE") == program and "--record" in arguments:
        print("--peaks: of another GPU", file=sys.stderr)
        sys.exit(2)
    if program in OTHERS:
        OTHERS[program](arguments)
    else:
        bench(program.removeprefix("bench_"), arguments)


if __name__ == "__main__":
    main()
