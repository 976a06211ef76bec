//! The sound card, behind the `device` feature: a player and a microphone, both mono `f32` at the caller's
//! rate through a bounded ring.

mod mic;
mod play;
mod ring;

use std::sync::Arc;

use cpal::traits::{DeviceTrait, StreamTrait};
use cpal::{FromSample, SampleFormat, SizedSample, StreamConfig, SupportedStreamConfig};

pub use mic::Mic;
pub use play::Player;

use crate::AudioError;
use ring::Ring;

/// Seconds of audio the ring holds.
const RING_SECONDS: usize = 2;

fn no_device(what: &'static str, detail: impl std::fmt::Display) -> AudioError {
    AudioError::NoDevice { what, detail: detail.to_string() }
}

/// Calls `$run::<T>` with the sample type of a device's format.
macro_rules! with_sample_type {
    ($what:expr, $format:expr, $run:ident ( $($arg:expr),* )) => {
        match $format {
            SampleFormat::F32 => $run::<f32>($($arg),*),
            SampleFormat::I16 => $run::<i16>($($arg),*),
            SampleFormat::I32 => $run::<i32>($($arg),*),
            SampleFormat::U8 => $run::<u8>($($arg),*),
            SampleFormat::U16 => $run::<u16>($($arg),*),
            SampleFormat::F64 => $run::<f64>($($arg),*),
            other => Err(no_device($what, format!("its sample format is {other}"))),
        }
    };
}

fn start_output(
    device: &cpal::Device,
    chosen: SupportedStreamConfig,
    ring: Arc<Ring>,
) -> Result<cpal::Stream, AudioError> {
    with_sample_type!("output", chosen.sample_format(), build_output(device, chosen.into(), ring))
}

fn build_output<T: SizedSample + FromSample<f32>>(
    device: &cpal::Device,
    config: StreamConfig,
    ring: Arc<Ring>,
) -> Result<cpal::Stream, AudioError> {
    let channels = usize::from(config.channels).max(1);
    let (fill, failed) = (ring.clone(), ring);
    let stream = device
        .build_output_stream(
            config,
            move |data: &mut [T], _: &cpal::OutputCallbackInfo| {
                fill.pop(data.len() / channels, |i, s| {
                    data[i * channels..(i + 1) * channels].fill(T::from_sample(s));
                });
            },
            move |error| failed.report(&error),
            None,
        )
        .map_err(|e| no_device("output", e))?;
    stream.play().map_err(|e| no_device("output", e))?;
    Ok(stream)
}

fn start_input(
    device: &cpal::Device,
    chosen: SupportedStreamConfig,
    ring: Arc<Ring>,
) -> Result<cpal::Stream, AudioError> {
    with_sample_type!("input", chosen.sample_format(), build_input(device, chosen.into(), ring))
}

fn build_input<T: SizedSample>(
    device: &cpal::Device,
    config: StreamConfig,
    ring: Arc<Ring>,
) -> Result<cpal::Stream, AudioError>
where
    f32: FromSample<T>,
{
    let channels = usize::from(config.channels).max(1);
    let (take, failed) = (ring.clone(), ring);
    let stream = device
        .build_input_stream(
            config,
            move |data: &[T], _: &cpal::InputCallbackInfo| {
                let mean = |frame: &[T]| {
                    frame.iter().map(|&s| <f32 as FromSample<T>>::from_sample_(s)).sum::<f32>()
                        / channels as f32
                };
                take.push_or_drop(data.chunks_exact(channels).map(mean));
            },
            move |error| failed.report(&error),
            None,
        )
        .map_err(|e| no_device("input", e))?;
    stream.play().map_err(|e| no_device("input", e))?;
    Ok(stream)
}
