//! What a model is made of, as a list that needs no knowledge of its family: stages, their weights and their work.

use std::fmt;

use voce_runtime::Format;

/// What one run of a stage is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Per {
    /// A frame of audio, made or heard.
    Frame,
    /// A step of a frame's sampler.
    SamplerStep,
    /// One of the codes that a frame is made of.
    Code,
    /// A label that was found.
    Label,
}

impl Per {
    /// The name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            Per::Frame => "frame",
            Per::SamplerStep => "sampler step",
            Per::Code => "code",
            Per::Label => "label",
        }
    }
}

impl fmt::Display for Per {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One stage of a model: what it holds and what a run of it costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageInfo {
    /// The name, which is also that of its time in the statistics of a stream.
    pub name: &'static str,
    /// Bytes of the stage's weights: a run reads them once, whatever number of streams it serves.
    pub bytes: usize,
    /// Multiply-adds of one stream's part of a run.
    pub macs: usize,
    /// What a run is for.
    pub per: Per,
    /// Runs in a second of audio, with one sampler step a frame; none where what is said decides.
    pub per_second: Option<f64>,
    /// Runs of one stream that share a reading of the weights once the stage has enough to do.
    pub together: usize,
    /// How most of its weights are stored.
    pub format: Format,
    /// Whether the tokens of a prompt go through it, too, all of a chunk of text in one run.
    pub prompts: bool,
}

impl StageInfo {
    /// Bytes of weights that a second of one stream reads, where the number of runs is known.
    pub fn bytes_per_second(&self) -> Option<f64> {
        self.per_second.map(|runs| self.bytes as f64 * runs / self.together.max(1) as f64)
    }
}

/// Bytes of all stages' weights.
pub fn weight_bytes(stages: &[StageInfo]) -> usize {
    stages.iter().map(|stage| stage.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_reads_what_its_runs_read() {
        let codec = StageInfo {
            name: "codec",
            bytes: 4000,
            macs: 1,
            per: Per::Frame,
            per_second: Some(12.5),
            together: 4,
            format: Format::F32,
            prompts: false,
        };
        assert_eq!(codec.bytes_per_second(), Some(12_500.0));
        let labels = StageInfo { per: Per::Label, per_second: None, ..codec };
        assert_eq!(labels.bytes_per_second(), None);
        assert_eq!(weight_bytes(&[codec, labels]), 8000);
    }
}
