#!/bin/bash
# One stretch on a GPU machine that is filled piece by piece.
#
#     stretch.sh PIECES [FOLLOW_SECONDS [END_IN_SECONDS]]
#
# Takes in what the folder PIECES holds (packs, texts.tar.xz, kokoro.part?? and kokoro.count, voce.xz, judge-NAME.npz, libopus.so.0, ear-?.pt and
# meta.json to go on from), starts
# whatever has its pieces by now and is not running, each in a session of its own, then follows the log for FOLLOW_SECONDS and
# copies the checkpoint to $OUT once a minute. END_IN_SECONDS moves the end of training. A stopped training goes on from its checkpoint.
# BASE: where everything lives. TRAIN, SYNTH: more options for train.py and for the speakers. KOKORO, NANO: how many processes.
# OFFSET: Kokoro's first line. KOKORO_FOR: seconds after which Kokoro stops. MODEL: the nano-voice folder. FROM=1: wait for ear-?.pt.
BASE=${BASE:-$HOME/ear}
HERE=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
mkdir -p "$BASE"/{in,packs,judges,shards,run,log,from}
[ -n "$MODEL" ] && [ ! -d "$BASE/nano-voice" ] && cp -r "$MODEL" "$BASE/nano-voice"
[ -d "$BASE/code" ] || cp -r "$HERE" "$BASE/code"
cd "$BASE" || exit 1

start() { # NAME COMMAND...: unless it runs or has finished
    local name=$1
    shift
    [ -f "log/$name.pid" ] && kill -0 "$(cat "log/$name.pid")" 2>/dev/null && return
    [ -f "log/$name.done" ] && return
    echo "$(date +%T) starting $name"
    setsid nohup bash -c '"${@:2}" && touch "log/$1.done"' start "$name" "$@" >>"log/$name.log" 2>&1 </dev/null &
    echo $! >"log/$name.pid"
}

train() {
    local more=()
    [ -n "$FROM" ] && { [ -f "$BASE/from/ear-1.pt" ] || return; more=(--resume "$BASE/from"); }
    [ -f "$BASE/run/meta.json" ] && more=(--resume "$BASE/run")
    start train "$PYTHON" "$BASE/code/train.py" --shards "$BASE/shards" --tokenizer "$BASE/texts/tokenizer.model" --out "$BASE/run" --libopus "$BASE/in/libopus.so.0" \
        --judge "dev=$BASE/judges/dev.npz" "nano=$BASE/judges/nano.npz" $TRAIN "${more[@]}"
}

if [ -d "$OLDPWD/$1" ]; then
    for piece in "$OLDPWD/$1"/*; do
        name=$(basename "$piece")
        case $name in
            ear-?.pt | meta.json) cp "$piece" from/ ;;
            judge-*.npz) cp "$piece" "judges/${name#judge-}" ;;
            *.npz) mkdir -p "packs/${name%.npz}" && cp "$piece" "packs/${name%.npz}/" ;;
            texts.tar.xz) tar -xJf "$piece" ;;
            voce.xz) xz -dc "$piece" >voce.part && chmod +x voce.part && mv voce.part voce ;;
            *) cp -r "$piece" in/ ;;
        esac
    done
fi
if [ ! -f kokoro/ready ] && [ "$(ls in/kokoro.part?? 2>/dev/null | wc -l)" = "$(cat in/kokoro.count 2>/dev/null)" ]; then
    cat in/kokoro.part?? | tar -xJ && touch kokoro/ready
fi

if command -v nvidia-cuda-mps-control >/dev/null && [ ! -f log/mps ]; then
    timeout 10 setsid nvidia-cuda-mps-control -d && touch log/mps
    echo "multi-process service: $?"
fi
cd code || exit 1
ln -sfn "$BASE/log" log
for pack in "$BASE"/packs/*/; do
    [ -d "$pack" ] && start "pack-$(basename "$pack")" "$PYTHON" synth.py packs --packs "$pack" --out "$BASE/shards" --libopus "$BASE/in/libopus.so.0"
done
if [ -f "$BASE/texts/tokenizer.model" ]; then
    train
    [ -f "$BASE/kokoro/ready" ] && start kokoro "$PYTHON" synth.py kokoro --texts "$BASE/texts" --kokoro "$BASE/kokoro" --hibari "$BASE/in" --out "$BASE/shards" \
        --workers "${KOKORO:-8}" --offset "${OFFSET:-0}" --deadline $((${KOKORO_FOR:+$(date +%s) + }${KOKORO_FOR:-0})) $SYNTH
    [ -x "$BASE/voce" ] && start nano "$PYTHON" synth.py nano --texts "$BASE/texts" --voce "$BASE/voce" --out "$BASE/shards" --workers "${NANO:-3}" ${MODEL:+--model "$BASE/nano-voice" --offset 0} $SYNTH
fi
cd "$BASE" || exit 1
[ -n "$3" ] && echo $(($(date +%s) + $3)) >run/deadline.part && mv run/deadline.part run/deadline

keep() {
    [ -n "$OUT" ] && [ "${2:-0}" -gt 0 ] && cp run/*.pt run/meta.json log/train.log "$OUT"/ 2>/dev/null
}
end=$((SECONDS + ${2:-0})) shown=0 kept=$SECONDS
while [ $SECONDS -lt $end ] && [ ! -f log/train.done ]; do
    sleep 2
    lines=$(wc -l <log/train.log)
    [ "$lines" -gt "$shown" ] && sed -n "$((shown + 1)),${lines}p" log/train.log | cut -c1-420
    shown=$lines
    [ -f log/train.done ] || train
    [ $((SECONDS - kept)) -ge 60 ] && keep "$@" && kept=$SECONDS
done
keep "$@"
for log in log/*.log; do
    [ "$log" = log/train.log ] || echo "== $log: $(tail -n 2 "$log" | tr '\n' ' ' | cut -c1-400)"
done
for folder in shards/*/; do [ -d "$folder" ] && echo "$folder $(ls "$folder" | wc -l)"; done
[ "${2:-0}" -gt 0 ] || tail -n 3 log/train.log 2>/dev/null
nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader 2>/dev/null
uptime
