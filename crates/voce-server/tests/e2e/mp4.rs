//! MP4 files whose tables promise four thousand million samples and have none.

fn atom(kind: &[u8; 4], inside: &[&[u8]]) -> Vec<u8> {
    let length = 8 + inside.iter().map(|p| p.len()).sum::<usize>();
    let mut bytes = (length as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(kind);
    inside.iter().for_each(|p| bytes.extend_from_slice(p));
    bytes
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_be_bytes()).collect()
}

/// A file of one AAC track with these tables.
fn file(tables: &[Vec<u8>]) -> Vec<u8> {
    let config = [0x13, 0x10];
    let esds = [
        &[0, 0, 0, 0, 3, 25, 0, 1, 0, 4, 17, 0x40, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 2][..],
        &config,
        &[6, 1, 2],
    ]
    .concat();
    let entry = atom(
        b"mp4a",
        &[
            &[0, 0, 0, 0, 0, 0, 0, 1],
            &words(&[0, 0]),
            &[0, 1, 0, 16, 0, 0, 0, 0],
            &words(&[24_000 << 16]),
            &atom(b"esds", &[&esds]),
        ],
    );
    let mut inside = vec![atom(b"stsd", &[&words(&[0, 1]), &entry])];
    inside.extend_from_slice(tables);
    let inside: Vec<&[u8]> = inside.iter().map(Vec::as_slice).collect();
    let minf = atom(
        b"minf",
        &[
            &atom(b"smhd", &[&words(&[0, 0])]),
            &atom(b"dinf", &[&atom(b"dref", &[&words(&[0, 1]), &atom(b"url ", &[&words(&[1])])])]),
            &atom(b"stbl", &inside),
        ],
    );
    let mdia = atom(
        b"mdia",
        &[
            &atom(b"mdhd", &[&words(&[0, 0, 0, 24_000, u32::MAX, 0x55c4_0000])]),
            &atom(b"hdlr", &[&words(&[0, 0]), b"soun", &words(&[0, 0, 0]), b"\0"]),
            &minf,
        ],
    );
    let mut matrix = vec![0; 36];
    matrix[1] = 1;
    let tkhd = atom(b"tkhd", &[&words(&[1, 0, 0, 1, 0, u32::MAX, 0, 0, 0, 0]), &matrix, &words(&[0, 0])]);
    let mvhd = atom(
        b"mvhd",
        &[
            &words(&[0, 0, 0, 24_000, u32::MAX, 0x1_0000, 0x100_0000, 0, 0]),
            &matrix,
            &words(&[0; 6]),
            &words(&[2]),
        ],
    );
    let moov = atom(b"moov", &[&mvhd, &atom(b"trak", &[&tkhd, &mdia])]);
    let ftyp = atom(b"ftyp", &[b"M4A \0\0\0\0M4A isom"]);
    [ftyp, moov, atom(b"mdat", &[&[0; 64]])].concat()
}

/// The files, with what is wrong with them.
pub(crate) fn forged() -> Vec<(&'static str, Vec<u8>)> {
    const MANY: u32 = u32::MAX;
    let stts = |entries: &[u32]| atom(b"stts", &[&words(&[0]), &words(entries)]);
    let stsc = |entries: &[u32]| atom(b"stsc", &[&words(&[0]), &words(entries)]);
    let stsz = |entries: &[u32]| atom(b"stsz", &[&words(&[0]), &words(entries)]);
    let stco = |entries: &[u32]| atom(b"stco", &[&words(&[0]), &words(entries)]);
    vec![
        (
            "a constant size",
            file(&[stts(&[1, MANY, 1024]), stsc(&[1, 1, MANY, 1]), stsz(&[1, MANY]), stco(&[1, 0])]),
        ),
        (
            "a table of sizes",
            file(&[stts(&[1, MANY, 1024]), stsc(&[1, 1, MANY, 1]), stsz(&[0, MANY]), stco(&[1, 0])]),
        ),
        ("times", file(&[stts(&[MANY]), stsc(&[1, 1, 1, 1]), stsz(&[1, 1]), stco(&[1, 0])])),
        ("chunks", file(&[stts(&[1, 1, 1]), stsc(&[MANY]), stsz(&[1, 1]), stco(&[MANY])])),
        (
            "long samples",
            file(&[stts(&[1, MANY, MANY]), stsc(&[1, 1, 1, 1]), stsz(&[MANY, MANY]), stco(&[1, MANY])]),
        ),
    ]
}
