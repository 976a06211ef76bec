//! Embedding tables with what follows them multiplied in: low ranks are widened, two text streams have a table each.

use voce_nn::{Formats, Linear, Loader, WeightError};
use voce_runtime::{Buffer, Exec, Format, Table};

use super::config::KyutaiConfig;

/// Rows of a table that are multiplied at once.
const ROWS: usize = 1024;

/// `values` of rows of `from`, through the layer `name` of `l` to rows of `to`.
pub(super) fn widened(
    exec: &mut Exec,
    l: &Loader,
    name: &str,
    values: &[f32],
    (from, to): (usize, usize),
) -> Result<Vec<f32>, WeightError> {
    // What is folded is rounded once, to the table's format.
    let layer = Linear::load(&l.apart().sub(name), to, from, Format::F32)?;
    let mut out = Vec::with_capacity(values.len() / from * to);
    let (mut x, mut y) = (Buffer::new(ROWS, from), Buffer::new(ROWS, to));
    for part in values.chunks(ROWS * from) {
        let rows = part.len() / from;
        x.head_mut(rows).copy_from_slice(part);
        layer.run(exec, &x, rows, &mut y);
        exec.fetch(&mut y, rows);
        out.extend_from_slice(y.head(rows));
    }
    Ok(out)
}

/// The tables of a text token: one, or two where it stands for two tokens.
pub(super) fn text_tables(
    exec: &mut Exec,
    l: &Loader,
    config: &KyutaiConfig,
    width: usize,
    rank: Option<usize>,
    formats: Formats,
) -> Result<Vec<Table>, WeightError> {
    let rows = config.text_card + 1;
    if !config.demux_second_stream {
        return Ok(vec![table(exec, l, rows, width, rank, formats)?]);
    }
    let inner = rank.unwrap_or(width);
    let values = l.tensor("weight", &[rows, inner])?;
    let mut tables = Vec::new();
    for name in ["out1", "out2"] {
        let wide = widened(exec, l, name, &values, (inner, width))?;
        tables.push(l.table_of(&wide, rows, width, formats.embedding)?);
    }
    Ok(tables)
}

/// A table of `rows` rows of `width`, which may be stored as rows of a lower rank and a layer.
pub(super) fn table(
    exec: &mut Exec,
    l: &Loader,
    rows: usize,
    width: usize,
    rank: Option<usize>,
    formats: Formats,
) -> Result<Table, WeightError> {
    match rank {
        None => l.table("weight", rows, width, formats.embedding),
        Some(rank) => {
            let values = l.tensor("weight", &[rows, rank])?;
            let wide = widened(exec, l, "low_rank", &values, (rank, width))?;
            l.table_of(&wide, rows, width, formats.embedding)
        }
    }
}
