// Rows from buffer to buffer.

struct CopyRowsArgs {
    u64 from, to, from_rows, to_rows;
    u32 from_stride, to_stride, cols, rows;
};

// Bound by memory: each value is read and written once, neighbours by neighbours.
KERNEL(copy_rows, CopyRowsArgs, 256) {
    const u64 count = (u64)a.rows * a.cols;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        const u32 row = (u32)(i / a.cols), col = (u32)(i % a.cols);
        const u64 from = a.from_rows ? at<const u32>(a.from_rows)[row] : row;
        const u64 to = a.to_rows ? at<const u32>(a.to_rows)[row] : row;
        if (from == NO_ROW || to == NO_ROW) continue;
        at<float>(a.to)[to * a.to_stride + col] = at<const float>(a.from)[from * a.from_stride + col];
    }
}

struct GuideWords {
    u32 row, without;
    float by;
    u32 pad;
};

struct GuideRowsArgs {
    u64 guides, x;
    u32 cols, count;
};

// Rows moved away from others: blocks (row, share of the columns).
KERNEL(guide_rows, GuideRowsArgs, 256) {
    const u32 i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= a.cols) return;
    const GuideWords g = at<const GuideWords>(a.guides)[blockIdx.x];
    const float without = at<const float>(a.x)[(u64)g.without * a.cols + i];
    float* value = at<float>(a.x) + (u64)g.row * a.cols + i;
    *value = without + (*value - without) * g.by;
}

struct AddScaledArgs {
    u64 x, to, count;
    float scale;
    u32 pad;
};

KERNEL(add_scaled, AddScaledArgs, 256) {
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) at<float>(a.to)[i] += a.scale * at<const float>(a.x)[i];
}
