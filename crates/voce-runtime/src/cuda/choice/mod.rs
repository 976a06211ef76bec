//! Which kernel runs: pure functions of shapes and formats, each with a table of what it chooses.

mod attention;
mod conv;
mod product;

pub(super) use attention::{
    ALONE_WARPS, BLOCKS, DECODE_QUERIES, Decode, FEW_WARPS, SHORT_HEADS, SHORT_PART, Singles, TILE_QUERIES,
    few_tile, move_kv, put_kv, relative_tile, splits, tile,
};
pub(super) use conv::{
    ConvShape, ConvWay, GROUP_ROWS, Unit, UnitGroups, always_unit, depthwise, residual, subsample, unit,
    unit_groups,
};
pub(super) use product::{
    FEW_ROWS, ProductShape, ProductWay, ROW_PIECE, ROW_WARPS, epilogue, few_rows, fours, glu, narrow,
    normalize, row, row_share, snake,
};
