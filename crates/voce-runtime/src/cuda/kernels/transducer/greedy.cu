// Greedy search of transducers: what a look of the joint says is decided here, and the rows of the next look and the labels
// for predictors are written for the kernels that follow. All of it is bound by latency, and reading logits.

// The longest cycle that the guard against repetition looks for.
#define MAX_CYCLE 8

// `Repeats` in Rust: the last labels, the last first, and for each cycle how many of them equal those a cycle before.
struct Repeats { u32 labels[MAX_CYCLE], counts[MAX_CYCLE]; };

// Whether a label would be a round too many of a cycle, counted from 0.
DEV bool repeats_too_often(const Repeats& past, u32 label, u32 cycle, u32 repeats) {
    const u64 most = (u64)(cycle + 1) * repeats;
    return most > 0 && past.labels[cycle] == label && past.counts[cycle] + 1ull >= most;
}
// What a label makes of one cycle's place; `now` may be `past` if the longest cycle comes first.
DEV void repeat(const Repeats& past, u32 label, u32 cycle, Repeats& now) {
    now.counts[cycle] = past.labels[cycle] == label ? past.counts[cycle] + 1 : 0;
    now.labels[cycle] = cycle == 0 ? label : past.labels[cycle - 1];
}

// Both are `GreedyRun` in Rust.
struct GreedyRun { u32 first, rows, at, symbols, max_symbols, lane, found, moved, cycle, repeats; };
struct GreedyStream {
    GreedyRun run;
    Repeats past;
};
struct GreedyLabel { u32 label, at, duration; float logit, sum; };

struct GreedyArgs {
    u64 logits, given, durations, runs, found, frames, lanes, labels, moved;
    u32 streams, looks, ahead, blank, duration_count, pad;
};

// Writes the rows of a stream's next look.
DEV void next_look(const GreedyArgs& a, u32 stream, const GreedyRun& run) {
    u32* frames = at<u32>(a.frames) + (u64)stream * a.ahead;
    u32* lanes = at<u32>(a.lanes) + (u64)stream * a.ahead;
    for (u32 j = 0; j < a.ahead; j++) {
        const bool there = run.at + j < run.rows;
        frames[j] = there ? run.first + run.at + j : NO_ROW;
        lanes[j] = there ? run.lane : NO_ROW;
    }
}

// A thread per stream.
KERNEL(greedy_begin, GreedyArgs, 256) {
    const u32 stream = blockIdx.x * blockDim.x + threadIdx.x;
    if (stream >= a.streams) return;
    const GreedyStream given = at<const GreedyStream>(a.given)[stream];
    at<GreedyStream>(a.runs)[stream] = given;
    next_look(a, stream, given.run);
}

// A warp's best of `n` values.
DEV Best row_best(const float* x, u32 n) {
    Best best = {-INF, NO_INDEX};
#pragma unroll 8
    for (u32 i = threadIdx.x % 32; i < n; i += 32) {
        const Best now = {x[i], i};
        if (before(now, best)) best = now;
    }
    return warp_best(best);
}

// A block per stream, a warp per frame that was looked at; then one thread goes over what they found, as a search that
// looks at one frame at a time would.
KERNEL(greedy_decide, GreedyArgs, 256) {
    __shared__ Best best[8];
    __shared__ float sums[8];
    __shared__ u32 durations[8];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, labels = a.blank + 1;
    GreedyStream& stream = at<GreedyStream>(a.runs)[blockIdx.x];
    GreedyRun run = stream.run;
    const u32 looked = run.at < run.rows ? min(a.ahead, run.rows - run.at) : 0;
    if (warp < looked) {
        const float* x = at<const float>(a.logits) + ((u64)blockIdx.x * a.ahead + warp) * (labels + a.duration_count);
        const Best winner = row_best(x, labels);
        float sum = 0.0f;
        if (fabsf(winner.value) < INF) {
#pragma unroll 8
            for (u32 i = lane; i < labels; i += 32) sum += expf(fmaxf(x[i] - winner.value, -87.0f));
            sum = warp_sum(sum);
        }
        const Best longest = row_best(x + labels, a.duration_count);
        if (lane == 0) {
            best[warp] = winner;
            sums[warp] = sum;
            durations[warp] = longest.index == NO_INDEX ? 0 : longest.index;
        }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    u32 label = NO_ROW;
    for (u32 j = 0; j < looked;) {
        const u32 duration = a.duration_count ? at<const u32>(a.durations)[durations[j]] : 0;
        bool blank = best[j].index == a.blank || !(best[j].value > -INF);
        for (u32 c = 0; c < run.cycle && !blank; c++) blank = repeats_too_often(stream.past, best[j].index, c, run.repeats);
        if (blank) {
            const u32 passed = max(duration, 1u);
            run.at += passed;
            run.symbols = 0;
            j += passed;
            continue;
        }
        label = best[j].index;
        for (u32 c = MAX_CYCLE; c-- > 0;) repeat(stream.past, label, c, stream.past);
        at<GreedyLabel>(a.found)[(u64)blockIdx.x * a.looks + run.found] = {label, run.at, durations[j], best[j].value, sums[j]};
        run.found++;
        run.at += duration;
        run.symbols = duration > 0 ? 0 : run.symbols + 1;
        if (run.symbols >= run.max_symbols) {
            run.at++;
            run.symbols = 0;
        }
        break;
    }
    run.moved = label != NO_ROW;
    stream.run = run;
    at<u32>(a.labels)[blockIdx.x] = label;
    at<u32>(a.moved)[blockIdx.x] = label == NO_ROW ? NO_ROW : run.lane;
    next_look(a, blockIdx.x, run);
}
