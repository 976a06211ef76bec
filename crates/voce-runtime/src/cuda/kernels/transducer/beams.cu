// Alignment-length synchronous beam search: after a look of the joint every hypothesis of a stream goes on by a label or a
// blank, the same ones are joined, the best stay, and the rows of the next look and the labels for predictors are written
// for the kernels that follow. The rules and their order are those of `malsd.rs` and `prune.rs`. A warp per stream, a
// lane per hypothesis; bound by latency.

#define NO_LABEL 0xffffffffu
// Lanes of predictors per hypothesis, and the most of a stream.
#define BEAM_LANES 4
#define MOST_LANES 128
// Frames by which a hypothesis may be behind another.
#define MAX_SPREAD 256

// As in `exec/transducer/beams.rs`.
struct BeamRun {
    u32 row, lane, end, last, beam, max_symbols, count, made, base, round;
    float gap;
    u32 cycle, repeats, pad;
};
struct BeamHyp {
    double score;
    u64 hash;
    u32 node, len, time, symbols, lane, pad;
};
struct BeamHeld {
    u64 hash;
    u32 len, used;
};
struct BeamNode {
    u32 parent, label, time, duration;
    float log_prob;
};

struct BeamArgs {
    u64 top, stats, tail;
    u64 runs, hyps, past, held, nodes;
    u64 frame_rows, lane_rows, durations;
    u64 frames, lanes, labels, from, to;
    u32 streams, width, looks, blank, duration_count, pad;
};

// One way a hypothesis may go on; none where the score is minus infinity.
struct BeamWay {
    double score;
    u32 label, duration, place;
    float log_prob;
};

// What the joint said about a lane's hypothesis.
struct BeamLook {
    const Best* best;
    const float* durations;
    float log_sum, blank, longest, duration_sum;
    u32 count;
};

DEV double log_add(double x, double y) {
    const double low = x < y ? x : y, high = x < y ? y : x;
    return low == -INF ? high : high + log1p(exp(low - high));
}
DEV float number_or_never(float x) { return x != x ? -INF : x; }

DEV BeamLook beam_look(const BeamArgs& a, u64 row, u32 beam) {
    const RowStats s = at<const RowStats>(a.stats)[row];
    const float* tail = at<const float>(a.tail) + row * (1 + a.duration_count);
    BeamLook z = {at<const Best>(a.top) + row * a.width, tail + 1, 0.0f, 0.0f, -INF, 0.0f, 0};
    z.log_sum = fabsf(s.max) < INF ? s.max + logf(s.sum) : 0.0f;
    z.blank = number_or_never(tail[0] - z.log_sum);
    while (z.count < beam && z.best[z.count].index != NO_INDEX) z.count++;
    for (u32 d = 0; d < a.duration_count; d++) z.longest = fmaxf(z.longest, z.durations[d]);
    for (u32 d = 0; d < a.duration_count; d++) z.duration_sum += expf(z.durations[d] - z.longest);
    return z;
}
DEV float duration_log_prob(const BeamLook& z, u32 d) { return z.durations[d] - z.longest - logf(z.duration_sum); }

// The way after another of RNN-T: labels in the order of their logits.
DEV BeamWay next_label(const BeamArgs& a, const BeamLook& z, double score, u32 place) {
    if (place >= z.count) return {-INF, NO_LABEL, 0, place, 0.0f};
    const Best best = z.best[place];
    const float add = best.value - z.log_sum;
    return {score + (double)add, best.index, best.index == a.blank ? 1u : 0u, place, number_or_never(add)};
}

// Whether a way of TDT comes before another: by score, label, duration.
DEV bool way_before(const BeamWay& x, const BeamWay& y) {
    if (x.score != y.score) return x.score > y.score;
    if (x.label != y.label) return x.label < y.label;
    return x.duration != y.duration ? x.duration < y.duration : x.place < y.place;
}
// The way after another of TDT: the best of the pairs of labels and durations that come after it.
DEV BeamWay next_pair(const BeamArgs& a, const BeamLook& z, double score, const BeamWay* last) {
    BeamWay best = {-INF, NO_LABEL, 0, NO_LABEL, 0.0f};
    for (u32 c = 0; c < z.count; c++) {
        const float add = z.best[c].value - z.log_sum;
        for (u32 d = 0; d < a.duration_count; d++) {
            const u32 frames = at<const u32>(a.durations)[d];
            const float sum = add + duration_log_prob(z, d);
            const BeamWay now = {score + (double)sum, z.best[c].index, z.best[c].index == a.blank ? max(frames, 1u) : frames, d,
                                 number_or_never(add)};
            if (now.score > -INF && way_before(now, best) && (!last || way_before(*last, now))) best = now;
        }
    }
    return best;
}

// A hypothesis that has no choice: at the end, without a number to go by, or with as many labels as a frame may have.
DEV bool has_one_way(const BeamArgs& a, const BeamRun& run, const BeamHyp& h, const BeamLook& z, BeamWay& way) {
    if (h.time >= run.end) {
        way = {h.score, NO_LABEL, 0, 0, 0.0f};
        return true;
    }
    if (z.count == 0) {
        way = {h.score, a.blank, 1, 0, 0.0f};
        return true;
    }
    if (h.symbols < run.max_symbols) return false;
    way = {h.score + (double)z.blank, a.blank, 1, 0, 0.0f};
    if (a.duration_count) {
        u32 sure = 0;
        float most = duration_log_prob(z, 0);
        for (u32 d = 1; d < a.duration_count; d++) {
            const float now = duration_log_prob(z, d);
            if (now > most || most != most) {
                sure = d;
                most = now;
            }
        }
        way.score += (double)most;
        way.duration = max(at<const u32>(a.durations)[sure], 1u);
    }
    return true;
}

// Whether a stream has to wait for frames, or is through with them; the same for all lanes.
DEV bool beam_rests(const BeamRun& run, bool mine, u32 time) {
    const u32 past = __ballot_sync(FULL, mine && time >= run.end), all = __ballot_sync(FULL, mine);
    return run.last ? past == all : past != 0;
}

// Writes a hypothesis's row of the next look.
DEV void beam_row(const BeamArgs& a, const BeamRun& run, bool looks, const BeamHyp& h) {
    const u32 n = threadIdx.x;
    if (n >= a.width) return;
    const u64 row = (u64)blockIdx.x * a.width + n;
    at<u32>(a.frames)[row] = looks ? at<const u32>(a.frame_rows)[run.row + h.time] : NO_ROW;
    at<u32>(a.lanes)[row] = looks ? at<const u32>(a.lane_rows)[run.lane + h.lane] : NO_ROW;
}

KERNEL(beam_begin, BeamArgs, 32) {
    const BeamRun run = at<const BeamRun>(a.runs)[blockIdx.x];
    const bool mine = threadIdx.x < run.count;
    BeamHyp h = {};
    if (mine) h = at<const BeamHyp>(a.hyps)[(u64)blockIdx.x * a.width + threadIdx.x];
    const bool rests = beam_rests(run, mine, h.time);
    beam_row(a, run, mine && !rests && h.time < run.end, h);
}

DEV u32 warp_least(u32 x) {
    for (int m = 16; m > 0; m >>= 1) x = min(x, __shfl_xor_sync(FULL, x, m));
    return x;
}
DEV BeamHyp hyp_of_lane(const BeamHyp& h, int lane) {
    BeamHyp got;
    got.score = __shfl_sync(FULL, h.score, lane);
    got.hash = __shfl_sync(FULL, h.hash, lane);
    got.node = __shfl_sync(FULL, h.node, lane);
    got.len = __shfl_sync(FULL, h.len, lane);
    got.time = __shfl_sync(FULL, h.time, lane);
    got.symbols = __shfl_sync(FULL, h.symbols, lane);
    got.lane = __shfl_sync(FULL, h.lane, lane);
    got.pad = __shfl_sync(FULL, h.pad, lane);
    return got;
}

// The best ways as hypotheses, one per lane, with the same ones joined: how many there are. `next.pad` is the label, and
// `heard` gets the labels before it.
DEV u32 choose_ways(const BeamArgs& a, BeamRun& run, const BeamHyp& h, bool mine, BeamHyp& next, Repeats* heard) {
    const u32 n = threadIdx.x;
    const Repeats* past = at<const Repeats>(a.past) + (u64)blockIdx.x * a.width;
    const double never = -INF;
    BeamLook z = {};
    BeamWay way = {never, NO_LABEL, 0, 0, 0.0f};
    bool one = true;
    if (mine) {
        // What a look said is there only for those that had a frame.
        if (h.time < run.end) z = beam_look(a, (u64)blockIdx.x * a.width + n, run.beam);
        one = has_one_way(a, run, h, z, way);
        if (!one) way = a.duration_count ? next_pair(a, z, h.score, 0) : next_label(a, z, h.score, 0);
    }
    u32 count = 0;
    double floor = never;
    BeamNode* nodes = at<BeamNode>(a.nodes) + (u64)blockIdx.x * a.looks * a.width;
    for (u32 pick = 0; pick < run.beam; pick++) {
        // The best of all lanes; of equals the first.
        double top = way.score > never ? way.score : never;
        for (int m = 16; m > 0; m >>= 1) {
            const double other = __shfl_xor_sync(FULL, top, m);
            if (other > top) top = other;
        }
        if (!(top > never) || top < floor) break;
        if (pick == 0) floor = top - (double)run.gap;
        const int winner = __ffs((int)__ballot_sync(FULL, way.score == top)) - 1;
        const u32 label = __shfl_sync(FULL, way.label, winner), duration = __shfl_sync(FULL, way.duration, winner);
        const float log_prob = __shfl_sync(FULL, way.log_prob, winner);
        BeamHyp now = hyp_of_lane(h, winner);
        const u32 parent = now.node, time = now.time;
        const bool says = label != NO_LABEL && label != a.blank;
        now.score = top;
        now.pad = label;
        if (says) {
            now.hash = now.hash * 6364136223846793005ull + (label + 1ull);
            now.len++;
        }
        if (label != NO_LABEL) {
            now.time += duration;
            now.symbols = duration > 0 ? 0 : now.symbols + 1;
        }
        const bool again = says && n < run.cycle && repeats_too_often(past[winner], label, n, run.repeats);
        const bool refused = __ballot_sync(FULL, again) != 0;
        const u32 same = __ballot_sync(FULL, n < count && next.hash == now.hash && next.len == now.len && next.time == now.time);
        if (refused) {
            // A round too many: it is left out.
        } else if (same) {
            if (n == (u32)__ffs((int)same) - 1) next.score = log_add(next.score, now.score);
        } else {
            if (says) {
                now.node = run.base + run.made;
                if (n == 0) nodes[run.made] = {parent, label, time, a.duration_count ? duration : 1u, log_prob};
                run.made++;
            }
            if (n == count) next = now;
            if (n < MAX_CYCLE) {
                if (says) repeat(past[winner], label, n, heard[count]);
                else {
                    heard[count].labels[n] = past[winner].labels[n];
                    heard[count].counts[n] = past[winner].counts[n];
                }
            }
            count++;
        }
        if (n == (u32)winner) {
            const BeamWay last = way;
            if (one) way.score = never;
            else way = a.duration_count ? next_pair(a, z, h.score, &last) : next_label(a, z, h.score, last.place + 1);
        }
    }
    if (count == 0) {
        // Nothing can be said: the best goes on as if it had heard nothing.
        next = hyp_of_lane(h, 0);
        next.time++;
        next.symbols = 0;
        next.pad = NO_LABEL;
        if (n == 0) heard[0] = past[0];
        count = 1;
    }
    return count;
}

// Drops hypotheses that are too far behind; those that stay move up. `source` is where each was.
DEV u32 drop_stragglers(BeamHyp& next, u32 count, int& source) {
    const u32 n = threadIdx.x;
    source = (int)n;
    const u32 front = ~warp_least(n < count ? ~next.time : NO_ROW);
    u32 stay = __ballot_sync(FULL, n < count && next.time + MAX_SPREAD >= front);
    const u32 left = __popc(stay);
    if (left == count) return count;
    for (u32 i = 0; stay; i++) {
        if (i == n) source = __ffs((int)stay) - 1;
        stay &= stay - 1;
    }
    next = hyp_of_lane(next, source);
    return left;
}

// Gives each hypothesis with new labels a lane: one that holds just these already, or the one that has been useless
// longest, which the predictor is asked to fill.
DEV void assign_lanes(const BeamArgs& a, const BeamRun& run, const BeamHyp& h, bool mine, BeamHyp& next, u32 count,
                      BeamHeld* held, u32* taken) {
    const u32 n = threadIdx.x, all = BEAM_LANES * run.beam;
    BeamHeld* kept = at<BeamHeld>(a.held) + (u64)blockIdx.x * BEAM_LANES * a.width;
    for (u32 i = n; i < all; i += 32) {
        held[i] = kept[i];
        taken[i] = 0;
    }
    __syncthreads();
    if (mine) taken[h.lane] = 1;
    if (n < count) {
        for (u32 i = 0; i < all; i++) {
            if (held[i].hash != next.hash || held[i].len != next.len) continue;
            taken[i] = 1;
            break;
        }
    }
    u32 label = NO_ROW, from = NO_ROW, to = NO_ROW;
    for (u32 j = 0; j < count; j++) {
        __syncthreads();
        const u64 hash = __shfl_sync(FULL, next.hash, j);
        const u32 len = __shfl_sync(FULL, next.len, j);
        u32 place = NO_ROW;
        for (u32 i = n; i < all && place == NO_ROW; i += 32) {
            if (held[i].hash == hash && held[i].len == len) place = i;
        }
        place = warp_least(place);
        const bool fresh = place == NO_ROW;
        if (fresh) {
            u32 oldest = NO_ROW;
            for (u32 i = n; i < all; i += 32) {
                if (!taken[i] && held[i].used < oldest) {
                    oldest = held[i].used;
                    place = i;
                }
            }
            const u32 least = warp_least(oldest);
            place = warp_least(oldest == least ? place : NO_ROW);
            if (place == NO_ROW) place = 0;
        }
        // All have read before one writes.
        __syncthreads();
        if (n != j) continue;
        if (fresh) {
            label = next.pad;
            from = at<const u32>(a.lane_rows)[run.lane + next.lane];
            to = at<const u32>(a.lane_rows)[run.lane + place];
        }
        held[place] = {hash, len, run.round};
        taken[place] = 1;
        next.lane = place;
    }
    __syncthreads();
    for (u32 i = n; i < all; i += 32) kept[i] = held[i];
    if (n >= a.width) return;
    const u64 row = (u64)blockIdx.x * a.width + n;
    at<u32>(a.labels)[row] = label;
    at<u32>(a.from)[row] = from;
    at<u32>(a.to)[row] = to;
}

KERNEL(beam_decide, BeamArgs, 32) {
    __shared__ BeamHeld held[MOST_LANES];
    __shared__ u32 taken[MOST_LANES];
    __shared__ Repeats heard[32];
    const u32 n = threadIdx.x;
    const u64 row = (u64)blockIdx.x * a.width + n;
    BeamRun run = at<const BeamRun>(a.runs)[blockIdx.x];
    const bool mine = n < run.count;
    BeamHyp h = {};
    if (mine) h = at<const BeamHyp>(a.hyps)[row];
    if (beam_rests(run, mine, h.time)) {
        beam_row(a, run, false, h);
        if (n < a.width) at<u32>(a.labels)[row] = at<u32>(a.from)[row] = at<u32>(a.to)[row] = NO_ROW;
        return;
    }
    run.round++;
    BeamHyp next = {};
    u32 count = choose_ways(a, run, h, mine, next, heard);
    int source;
    count = drop_stragglers(next, count, source);
    assign_lanes(a, run, h, mine, next, count, held, taken);
    const bool stays = n < count;
    if (stays) {
        at<BeamHyp>(a.hyps)[row] = next;
        at<Repeats>(a.past)[row] = heard[source];
    }
    run.count = count;
    if (n == 0) at<BeamRun>(a.runs)[blockIdx.x] = run;
    const bool rests = beam_rests(run, stays, next.time);
    beam_row(a, run, stays && !rests && next.time < run.end, next);
}
