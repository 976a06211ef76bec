//! Who speaks: rows that every layer looks at, of one speaker or of two, or the codes of a recording.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use voce_nn::weights::SafetensorsFile;
use voce_nn::{Linear, Loader, WeightError, Weights as _};
use voce_runtime::{Buffer, Exec, Format, KvCache};

use crate::kyutai::{Conditioner, KyutaiConfig, Lm};
use crate::speech::{VoiceData, VoiceError, VoiceTensor};

/// Speakers that a model has room for.
pub const MAX_SPEAKERS: usize = 5;
/// Rows of a speaker at most: ten seconds.
pub const MAX_VOICE_ROWS: usize = 125;
/// Frames of a recording that a voice may be.
pub const MAX_PREFIX_FRAMES: usize = 500;
/// The tensor of a voice's file.
const ROWS: &str = "speaker_wavs";

/// A voice ready to speak with.
pub struct Voice(Kind);

enum Kind {
    /// Speakers' rows, and what all layers make of them.
    Looked { speakers: Vec<Speaker>, source: KvCache },
    /// Codes by codebook.
    Prefix(Vec<Vec<u32>>),
}

/// One speaker's rows.
#[derive(Clone)]
struct Speaker {
    rows: usize,
    values: Vec<f32>,
}

impl fmt::Debug for Voice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Looked { speakers, .. } => write!(f, "{} speakers", speakers.len()),
            Kind::Prefix(codes) => write!(f, "a recording of {} frames", codes.first().map_or(0, Vec::len)),
        }
    }
}

impl Voice {
    /// A recording's codes, by codebook.
    pub fn prefix(codes: Vec<Vec<u32>>) -> Self {
        Self(Kind::Prefix(codes))
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Kind::Looked { speakers, source } => {
                source.spec().bytes() + speakers.iter().map(|s| 4 * s.values.len()).sum::<usize>()
            }
            Kind::Prefix(codes) => codes.iter().map(|c| 4 * c.len()).sum(),
        }
    }

    /// What layers look at.
    pub(super) fn source(&self) -> Option<&KvCache> {
        match &self.0 {
            Kind::Looked { source, .. } => Some(source),
            Kind::Prefix(_) => None,
        }
    }

    /// The codes that stand before the first frame.
    pub(super) fn codes(&self) -> &[Vec<u32>] {
        match &self.0 {
            Kind::Looked { .. } => &[],
            Kind::Prefix(codes) => codes,
        }
    }

    /// The tensor of its file.
    pub(super) fn export(&self) -> Result<Vec<VoiceTensor>, VoiceError> {
        let other = |what: &str| VoiceError::Other(format!("{what} has no file of its own"));
        match &self.0 {
            Kind::Looked { speakers, .. } => {
                let [Speaker { rows, values }] = &speakers[..] else { return Err(other("a pair of voices")) };
                let width = values.len() / rows;
                let across = (0..width * rows).map(|i| values[i % rows * width + i / rows]).collect();
                let (name, shape) = (ROWS.to_owned(), vec![1, width, *rows]);
                Ok(vec![VoiceTensor { name, shape, data: VoiceData::Floats(across) }])
            }
            Kind::Prefix(_) => Err(other("a recording")),
        }
    }
}

/// Makes voices of a model whose layers look at speakers' rows.
pub(super) struct Sources {
    /// Width of a speaker's rows, and of the model's.
    widths: (usize, usize),
    projection: Linear,
    /// What stands where there is no speaker.
    absent: Vec<f32>,
    /// What positions are multiplied with; none has no positions.
    positions: Option<f32>,
    /// What all layers make of nobody, for the last number of rows that was asked for.
    nobody: Mutex<Option<(usize, Arc<KvCache>)>>,
}

impl Sources {
    /// Loads the projection; `None` where layers look at nothing.
    pub(super) fn load(l: &Loader, config: &KyutaiConfig) -> Result<Option<Self>, WeightError> {
        let Some(fuser) = config.fuser.as_ref().filter(|_| config.cross_attention) else { return Ok(None) };
        let Some((name, Conditioner::Tensor { dim })) =
            fuser.cross.first().and_then(|name| config.conditioners.get_key_value(name))
        else {
            return Ok(None);
        };
        let (l, width) = (l.sub("condition_provider.conditioners").sub(name), config.dim);
        Ok(Some(Self {
            widths: (*dim, width),
            projection: Linear::load(&l.sub("output_proj"), width, *dim, Format::F32)?,
            absent: l.optional("learnt_padding", &[1, 1, width])?.unwrap_or_else(|| vec![0.0; width]),
            positions: fuser.cross_attention_pos_emb.then_some(fuser.cross_attention_pos_emb_scale),
            nobody: Mutex::new(None),
        }))
    }

    /// The voice of a file as published.
    pub(super) fn read(&self, exec: &mut Exec, lm: &Lm, file: &SafetensorsFile) -> Result<Voice, VoiceError> {
        let Some(tensor) = file.get(ROWS, &[])? else {
            return Err(VoiceError::Other(format!("it has no tensor '{ROWS}'")));
        };
        let (width, shape) = (self.widths.0, tensor.shape.clone());
        let rows = match shape[..] {
            [1, dim, rows] if dim == width && rows > 0 => rows,
            _ => {
                let text =
                    format!("'{ROWS}' has shape {shape:?}, and this model looks at [1, {width}, rows]");
                return Err(VoiceError::Other(text));
            }
        };
        if rows > MAX_VOICE_ROWS {
            return Err(VoiceError::TooLong { positions: rows, most: MAX_VOICE_ROWS });
        }
        if tensor.values.iter().any(|v| !v.is_finite()) {
            return Err(VoiceError::Other(format!("'{ROWS}' holds values that are no numbers")));
        }
        let values = (0..rows * width).map(|i| tensor.values[i % width * rows + i / width]).collect();
        Ok(self.voice(exec, lm, vec![Speaker { rows, values }]))
    }

    /// One voice of several, whose turns follow each other.
    pub(super) fn join(&self, exec: &mut Exec, lm: &Lm, voices: &[Arc<Voice>]) -> Result<Voice, VoiceError> {
        let mut all = Vec::new();
        for voice in voices {
            let Kind::Looked { speakers, .. } = &voice.0 else {
                return Err(VoiceError::Other("a recording speaks alone".into()));
            };
            all.extend(speakers.iter().cloned());
        }
        if all.len() > MAX_SPEAKERS || all.iter().any(|s| s.rows != all[0].rows) {
            let text =
                format!("{} speakers, or voices of different lengths: {MAX_SPEAKERS} is the most", all.len());
            return Err(VoiceError::Other(text));
        }
        Ok(self.voice(exec, lm, all))
    }

    fn voice(&self, exec: &mut Exec, lm: &Lm, speakers: Vec<Speaker>) -> Voice {
        let rows = speakers.first().map_or(0, |s| s.rows);
        let nobody = self.nobody(exec, lm, rows);
        let mut source = Buffer::new(rows * speakers.len(), self.widths.1);
        for (i, speaker) in speakers.iter().enumerate() {
            let projected = self.projected(exec, speaker);
            for (r, values) in projected.chunks_exact(self.widths.1).enumerate() {
                source.row_mut(i * rows + r).copy_from_slice(values);
            }
        }
        self.add_positions(&mut source);
        Voice(Kind::Looked { source: lm.decoder().look_at(exec, &source, Some(&nobody)), speakers })
    }

    /// What all layers make of a source without speakers.
    pub(super) fn nobody(&self, exec: &mut Exec, lm: &Lm, rows: usize) -> Arc<KvCache> {
        let mut held = self.nobody.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, nobody)) = held.as_ref().filter(|(of, _)| *of == rows) {
            return nobody.clone();
        }
        let mut source = Buffer::new(MAX_SPEAKERS * rows, self.widths.1);
        (0..source.rows()).for_each(|r| source.row_mut(r).copy_from_slice(&self.absent));
        self.add_positions(&mut source);
        let nobody = Arc::new(lm.decoder().look_at(exec, &source, None));
        exec.finish();
        *held = Some((rows, nobody.clone()));
        nobody
    }

    fn projected(&self, exec: &mut Exec, speaker: &Speaker) -> Vec<f32> {
        let (mut x, mut y) =
            (Buffer::new(speaker.rows, self.widths.0), Buffer::new(speaker.rows, self.widths.1));
        x.head_mut(speaker.rows).copy_from_slice(&speaker.values);
        self.projection.run(exec, &x, speaker.rows, &mut y);
        exec.fetch(&mut y, speaker.rows);
        y.head(speaker.rows).to_vec()
    }

    /// Cosines, then sines, of angles that fall from the position itself to a ten-thousandth of it.
    fn add_positions(&self, source: &mut Buffer) {
        let Some(scale) = self.positions else { return };
        let half = self.widths.1 / 2;
        let rates: Vec<f32> =
            (0..half).map(|i| 10_000f32.powf(i as f32 / (half.max(2) - 1) as f32)).collect();
        for r in 0..source.rows() {
            let row = source.row_mut(r);
            for (i, rate) in rates.iter().enumerate() {
                let angle = r as f32 / rate;
                row[i] += scale * angle.cos();
                row[half + i] += scale * angle.sin();
            }
        }
    }
}
