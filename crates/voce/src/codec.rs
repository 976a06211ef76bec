//! `voce codec`: recordings to codes and codes to recordings, with a model's codec alone.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;
use voce_audio::{DecodeLimits, Decoder, MonoStream, Source};
use voce_engine::codec::{self, Codec, CodecOptions};
use voce_engine::store::Store;

use crate::args::PrecisionArg;
use crate::console::Console;
use crate::device::{self, DeviceArgs, Switch};
use crate::failure::{Failure, Outcome};
use crate::say::sink::Target;
use crate::{interrupt, whole_file};

/// What to do with a codec.
#[derive(Debug, Subcommand)]
pub(crate) enum CodecCommand {
    /// Encode audio into a file of codes: `codes`, 32-bit integers, codebooks by frames
    Encode {
        /// Audio file of any format and rate; `-` reads standard input
        audio: PathBuf,
        /// File of codes (.safetensors)
        #[arg(short, long)]
        output: PathBuf,
        #[command(flatten)]
        how: CodecArgs,
    },
    /// Decode a file of codes into audio
    Decode {
        /// File of codes (.safetensors)
        codes: PathBuf,
        /// Audio file; `-` writes standard output
        #[arg(short, long)]
        output: PathBuf,
        /// Format of the audio, where the file's name does not tell
        #[arg(long)]
        format: Option<String>,
        #[command(flatten)]
        how: CodecArgs,
    },
}

/// Which codec, and how it runs.
#[derive(Debug, Clone, Args)]
pub(crate) struct CodecArgs {
    /// Model whose codec it is, or the codec's own folder or file: a folder, a .safetensors file of Mimi, a catalogue
    /// name, owner/repo or hf://...
    #[arg(short, long, env = "VOCE_MODEL")]
    model: String,
    /// Codebooks to use, the first ones, of codecs that can do with fewer [default: all]
    #[arg(long, value_name = "N", env = "VOCE_CODEBOOKS")]
    codebooks: Option<usize>,
    /// Precision of the weights; f32 gives the codes that the published package gives
    #[arg(long, value_enum, env = "VOCE_PRECISION", default_value = "f32")]
    precision: PrecisionArg,
    /// Threads; 0 chooses
    #[arg(long, env = "VOCE_THREADS", default_value_t = 0)]
    threads: usize,
    #[command(flatten)]
    device: DeviceArgs,
}

impl CodecArgs {
    fn open(&self, console: Console) -> Outcome<Codec> {
        let store = Store::from_env()?;
        // Products of rounded factors would choose other codes now and then.
        let tf32 = if self.precision == PrecisionArg::F32 { Switch::Off } else { self.device.tf32 };
        let device = DeviceArgs { tf32, ..self.device.clone() }.open()?;
        let options = CodecOptions {
            precision: Some(device::precision(self.precision, device.as_ref())),
            device: device.into(),
            threads: self.threads,
            codebooks: self.codebooks,
        };
        let progress = console.progress();
        progress.set_message("loading the codec");
        let codec = Codec::open(&store, &self.model, &options)?;
        progress.finish_and_clear();
        interrupt::check()?;
        Ok(codec)
    }
}

/// Runs the command.
pub(crate) fn run(console: Console, command: CodecCommand) -> Outcome {
    match command {
        CodecCommand::Encode { audio, output, how } => encode(console, &audio, &output, &how),
        CodecCommand::Decode { codes, output, format, how } => {
            decode(console, &codes, &output, format.as_deref(), &how)
        }
    }
}

fn encode(console: Console, audio: &Path, output: &Path, how: &CodecArgs) -> Outcome {
    let named = |e| Failure::failed(format!("{}: {e}", audio.display()));
    let stdin = audio == Path::new("-");
    let source = if stdin { Source::reader(std::io::stdin()) } else { Source::file(audio).map_err(named)? };
    let hint = audio.extension().and_then(|e| e.to_str());
    let decoder = Decoder::open(source, hint, &DecodeLimits::local()).map_err(named)?;
    let mut codec = how.open(console)?;
    let rate = codec.info().input_rate;
    let mut stream = MonoStream::new(decoder, rate as u32);
    let (mut samples, mut outcome) = (0, Ok(()));
    let codes = codec.encode_from(|out| {
        let block = interrupt::check().and_then(|()| stream.next_block().map_err(named));
        match block {
            Ok(Some(block)) => {
                samples += block.len();
                out.extend_from_slice(block);
                true
            }
            Ok(None) => false,
            Err(failure) => {
                outcome = Err(failure);
                false
            }
        }
    });
    outcome?;
    let codes = codes?;
    whole_file::write(output, &codec::to_bytes(&codes)?)?;
    let (books, frames) = (codes.len(), codes.first().map_or(0, Vec::len));
    let seconds = samples as f64 / rate as f64;
    if console.json {
        return console.json(&json!({
            "output": output, "codebooks": books, "frames": frames, "seconds": seconds,
        }));
    }
    console.note(&format!("{frames} frames of {books} codes ({seconds:.2} s) in {}", output.display()));
    Ok(())
}

fn decode(console: Console, path: &Path, output: &Path, format: Option<&str>, how: &CodecArgs) -> Outcome {
    let target = Target::new(Some(output), format, false)?;
    let mut codes = codec::read_file(path)?;
    if let Some(count) = how.codebooks {
        codes.truncate(count);
    }
    let mut codec = how.open(console)?;
    let rate = codec.info().output_rate;
    codec.info().check(&codes).map_err(voce_engine::EngineError::from)?;
    let mut sink = target.open(rate as u32)?;
    let (mut samples, mut outcome) = (0, Ok(()));
    codec.decode(&codes, |piece| {
        samples += piece.len();
        outcome = interrupt::check().and_then(|()| Ok(sink.write(piece)?));
        outcome.is_ok()
    })?;
    outcome?;
    sink.finish()?;
    let (frames, seconds) = (codes.first().map_or(0, Vec::len), samples as f64 / rate as f64);
    if target.on_stdout() {
        return Ok(());
    }
    if console.json {
        return console.json(&json!({
            "output": output, "frames": frames, "seconds": seconds, "sample_rate": rate,
        }));
    }
    console.note(&format!("{frames} frames ({seconds:.2} s at {rate} Hz) in {}", output.display()));
    Ok(())
}
