//! The shape of a model as moshi-server's configuration has it, as the `config.json` that Kyutai publishes.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::modules::{Asr, Conditioner, Gen, Generation, Lm, LmConfig, TrConfig, Tts};
use super::py::FRAME_RATE;

/// Names of the files in a folder that is made for a module.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// The same, where they are GGUF.
pub(crate) const GGUF_WEIGHTS: &str = "model.gguf";
pub(crate) const CODEC: &str = "mimi.safetensors";
pub(crate) const TOKENIZER: &str = "tokenizer.model";

/// Codebooks that each side of a dialogue has.
fn groups(generated: usize, given: usize) -> impl Iterator<Item = usize> {
    (0..generated).chain(0..given)
}

/// The `config.json` of a recogniser.
pub(crate) fn asr(module: &Asr) -> Result<Value, String> {
    let mut config = language_model(&module.model)?;
    let delay = condition(module, &mut config)?;
    config.insert("model_type".into(), "stt".into());
    config.insert("delays".into(), json!(vec![0; module.model.audio_codebooks + 1]));
    config.insert(
        "stt_config".into(),
        json!({
            "audio_delay_seconds": delay as f64 / FRAME_RATE,
            "audio_silence_prefix_seconds": 0.0,
        }),
    );
    let temperature = module.temperature.unwrap_or(0.0);
    config.insert("lm_gen_config".into(), json!({"temp": temperature, "temp_text": temperature}));
    Ok(config.into())
}

/// Writes down the languages of a published recogniser, which the file of its tokeniser is called by, such as
/// `tokenizer_en_fr_audio_8000.model`.
pub(crate) fn name_languages(config: &mut Value, tokenizer: &Path) {
    let name = tokenizer.file_name().unwrap_or_default().to_string_lossy();
    let known = [("_en_fr_audio_", &["en", "fr"][..]), ("_en_audio_", &["en"])];
    if let Some((_, codes)) = known.iter().find(|(mark, _)| name.contains(mark)) {
        config["languages"] = json!(codes);
    }
}

/// Tells a recogniser that was taught several delays which one is meant; gives the delay in tokens.
fn condition(module: &Asr, config: &mut Map<String, Value>) -> Result<usize, String> {
    let (asked, learnt) = (module.conditioning_delay, module.conditioning_learnt_padding);
    let numbers: Vec<&String> = module
        .model
        .conditioners
        .iter()
        .filter(|(_, c)| matches!(c, Conditioner::ContinuousAttribute { .. }))
        .map(|(name, _)| name)
        .collect();
    if let Some(other) = numbers.iter().find(|name| **name != DELAY) {
        return Err(format!(
            "its condition '{other}' is a number: only '{DELAY}' can be told to a recogniser"
        ));
    }
    if asked.is_some() && learnt {
        return Err("conditioning_delay and conditioning_learnt_padding: give one of them".into());
    }
    if !numbers.is_empty() && asked.is_none() && !learnt {
        return Err("its model has a delay as a condition: give conditioning_delay (seconds) or \
                    conditioning_learnt_padding = true"
            .into());
    }
    let Some(seconds) = asked else { return Ok(module.asr_delay_in_tokens) };
    if !(0.0..=MOST_DELAY).contains(&seconds) {
        return Err(format!("conditioning_delay is {seconds}: use 0 to {MOST_DELAY} seconds"));
    }
    if !numbers.is_empty() {
        // The model was taught how far the text is behind the audio as a number below zero.
        config["conditioners"][DELAY]["continuous"]["value"] = json!(-seconds);
    }
    Ok((seconds as f32 * FRAME_RATE as f32) as usize + 1)
}

/// The condition of recognisers that were taught several delays, and the longest that is taken.
const DELAY: &str = "delay";
const MOST_DELAY: f64 = 60.0;

/// The `config.json` of a dialogue model.
pub(crate) fn lm(module: &Lm) -> Result<Value, String> {
    let Gen {
        generated_audio_codebooks,
        input_audio_codebooks,
        acoustic_delay,
        text_pad_token,
        text_eop_token,
    } = module.r#gen;
    let books = generated_audio_codebooks + input_audio_codebooks;
    if books != module.model.audio_codebooks {
        return Err(format!(
            "gen has {books} codebooks, and model.audio_codebooks is {}",
            module.model.audio_codebooks
        ));
    }
    let mut config = language_model(&module.model)?;
    let audio = groups(generated_audio_codebooks, input_audio_codebooks);
    let audio = audio.map(|book| if book == 0 { 0 } else { acoustic_delay });
    let delays: Vec<usize> = std::iter::once(0).chain(audio).collect();
    config.insert("delays".into(), json!(delays));
    config.insert("dep_q".into(), generated_audio_codebooks.into());
    config.insert("model_type".into(), "moshi".into());
    config.insert("existing_text_padding_id".into(), text_pad_token.into());
    config.insert("existing_text_end_padding_id".into(), text_eop_token.into());
    config.insert(
        "lm_gen_config".into(),
        json!({"temp": 0.8, "temp_text": 0.8, "top_k": 250, "top_k_text": 25}),
    );
    Ok(config.into())
}

/// The `config.json` of a model that speaks.
pub(crate) fn tts(module: &Tts) -> Result<Value, String> {
    let Generation {
        acoustic_delay,
        text_pad_token,
        text_eop_token,
        text_audio_delay_in_tokens,
        speaker_cond_dim,
    } = module.generation;
    let mut config = language_model(&module.model)?;
    let audio = (0..module.model.audio_codebooks).map(|book| if book == 0 { 0 } else { acoustic_delay });
    let delays: Vec<usize> = std::iter::once(0).chain(audio).collect();
    config.insert("delays".into(), json!(delays));
    config.insert("model_type".into(), "tts".into());
    config.insert("existing_text_padding_id".into(), text_pad_token.into());
    config.insert("existing_text_end_padding_id".into(), text_eop_token.into());
    let delay = text_audio_delay_in_tokens as f64 / FRAME_RATE;
    config.insert("tts_config".into(), json!({"audio_delay": delay, "second_stream_ahead": 0}));
    if module.model.transformer.cross_attention.is_some() {
        // The source is not among the conditioners there.
        config["conditioners"]["speaker_wavs"] =
            json!({"type": "tensor", "tensor": {"dim": speaker_cond_dim}});
        config["fuser"]["cross"] = json!(["speaker_wavs"]);
        config["fuser"]["cross_attention_pos_emb"] = true.into();
    }
    Ok(config.into())
}

/// The arguments of the published package's model that give the same shape.
fn language_model(model: &LmConfig) -> Result<Map<String, Value>, String> {
    let tr = &model.transformer;
    check(tr)?;
    if model.text_in_vocab_size != model.text_out_vocab_size + 1 {
        return Err(format!(
            "text_in_vocab_size is {}: one more than text_out_vocab_size can be run",
            model.text_in_vocab_size
        ));
    }
    let card = model.audio_vocab_size.checked_sub(1).ok_or("audio_vocab_size is 0")?;
    let mut config = json!({
        "dim": tr.d_model, "text_card": model.text_out_vocab_size, "n_q": model.audio_codebooks, "dep_q": 0,
        "card": card, "num_heads": tr.num_heads, "num_layers": tr.num_layers, "causal": tr.causal,
        "kv_repeat": tr.kv_repeat, "context": tr.context, "max_period": tr.max_period,
        // Halfway between two widths, so that no rounding reaches the other one.
        "hidden_scale": (feedforward(tr) as f64 + 0.5) / tr.d_model as f64,
        "gating": tr.gating.as_deref().map_or("none".into(), str::to_lowercase), "norm": norm(&tr.norm),
        "positional_embedding": tr.positional_embedding.to_lowercase(),
        "cross_attention": tr.cross_attention.is_some(),
        "conditioners": {}, "fuser": {"sum": [], "cross": [], "prepend": []},
        "mimi_name": CODEC, "moshi_name": WEIGHTS, "tokenizer_name": TOKENIZER,
    });
    if let Some(dep) = &model.depformer {
        let tr = &dep.transformer;
        check(tr).map_err(|e| format!("depformer: {e}"))?;
        config["dep_q"] = dep.num_slices.into();
        config["depformer_dim"] = tr.d_model.into();
        config["depformer_num_heads"] = tr.num_heads.into();
        config["depformer_num_layers"] = tr.num_layers.into();
        config["depformer_dim_feedforward"] = feedforward(tr).into();
        config["depformer_multi_linear"] = true.into();
        config["depformer_weights_per_step"] = true.into();
        config["depformer_pos_emb"] = tr.positional_embedding.to_lowercase().into();
        config["depformer_low_rank_embeddings"] = json!(dep.low_rank_embeddings);
    }
    if let Some(heads) = model.extra_heads {
        config["extra_heads_num_heads"] = heads.num_heads.into();
        config["extra_heads_dim"] = heads.dim.into();
    }
    let mut sum = Vec::new();
    for (name, conditioner) in &model.conditioners {
        config["conditioners"][name] = match conditioner {
            Conditioner::Lut { n_bins, dim, possible_values } => json!({
                "type": "lut",
                "lut": {"n_bins": n_bins, "dim": dim, "tokenizer": "noop", "possible_values": possible_values},
            }),
            Conditioner::ContinuousAttribute { dim, scale_factor, max_period } => json!({
                "type": "continuous",
                "continuous": {"dim": dim, "scale_factor": scale_factor, "max_period": max_period},
            }),
        };
        sum.push(name);
    }
    config["fuser"]["sum"] = json!(sum);
    match config {
        Value::Object(config) => Ok(config),
        _ => Ok(Map::new()),
    }
}

/// Refuses what no published model has.
fn check(tr: &TrConfig) -> Result<(), String> {
    for (is_on, what) in [
        (!tr.norm_first, "norm_first = false"),
        (tr.bias_ff, "bias_ff"),
        (tr.bias_attn, "bias_attn"),
        (tr.layer_scale.is_some(), "layer_scale"),
        (tr.use_conv_block, "use_conv_block"),
        (tr.d_model == 0, "d_model = 0"),
    ] {
        if is_on {
            return Err(format!("its transformer asks for {what}, which cannot be run"));
        }
    }
    Ok(())
}

fn norm(name: &str) -> &str {
    match name {
        "RmsNorm" => "rms_norm_f32",
        "LayerNorm" => "layer_norm",
        other => other,
    }
}

/// The published package's `dim_feedforward` for the same width of the gated part. Four times the width is a sign there and
/// here, of different widths.
fn feedforward(tr: &TrConfig) -> usize {
    match tr.dim_feedforward == 4 * tr.d_model {
        true => (3 * (11 * tr.d_model / 4)).div_ceil(2),
        false => tr.dim_feedforward,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tr(d_model: usize, dim_feedforward: usize) -> TrConfig {
        toml::from_str(&format!(
            "d_model = {d_model}\nnum_heads = 2\nnum_layers = 1\ndim_feedforward = {dim_feedforward}\n\
             causal = true\nnorm_first = true\nbias_ff = false\nbias_attn = false\ncontext = 7\n\
             max_period = 10000\nuse_conv_block = false\ngating = 'silu'\nnorm = 'RmsNorm'\n\
             positional_embedding = 'Rope'\nkv_repeat = 1"
        ))
        .unwrap()
    }

    /// The rule of the published package.
    fn published(feedforward: usize, width: usize) -> usize {
        if feedforward == 4 * width { 21 * width / 8 } else { 2 * feedforward / 3 }
    }

    #[test]
    fn the_gated_part_has_the_width_that_the_candle_models_have() {
        for width in [8, 12, 64, 96, 100, 1024, 2048, 4096] {
            let same = tr(width, 4 * width);
            assert_eq!(published(feedforward(&same), width), 11 * width / 4, "{width}");
            for feedforward_width in [3 * width, 4 * width + 3, 33 * width / 8] {
                let other = tr(width, feedforward_width);
                assert_eq!(published(feedforward(&other), width), 2 * feedforward_width / 3, "{width}");
            }
            // As a scale it is the same number again.
            for t in [tr(width, 4 * width), tr(width, 5 * width)] {
                let scale = (feedforward(&t) as f64 + 0.5) / width as f64;
                assert_eq!((scale * width as f64) as usize, feedforward(&t));
            }
        }
    }

    fn asr_of(more: &str, conditioners: &str) -> Result<Value, String> {
        let tr = "{ d_model = 8, num_heads = 2, num_layers = 1, dim_feedforward = 32, causal = true, norm_first = true, \
                  bias_ff = false, bias_attn = false, context = 7, max_period = 10000, use_conv_block = false, \
                  gating = 'silu', norm = 'RmsNorm', positional_embedding = 'Rope', kv_repeat = 1 }";
        let text = format!(
            "path = '/a'\nlm_model_file = ''\ntext_tokenizer_file = ''\naudio_tokenizer_file = ''\n\
             asr_delay_in_tokens = 6\n{more}\n[model]\ntext_in_vocab_size = 9\ntext_out_vocab_size = 8\n\
             audio_vocab_size = 9\naudio_codebooks = 2\ntransformer = {tr}\n{conditioners}"
        );
        asr(&toml::from_str(&text).unwrap())
    }

    #[test]
    fn a_delay_that_is_a_condition_is_told_to_the_model_and_counted() {
        let number = "[model.conditioners.delay]\ntype = 'ContinuousAttribute'\ndim = 6\nscale_factor = 10.0\nmax_period = 100.0";
        let config = asr_of("conditioning_delay = 0.5", number).unwrap();
        assert_eq!(config["conditioners"]["delay"]["continuous"]["value"], -0.5);
        assert_eq!(config["stt_config"]["audio_delay_seconds"], 7.0 / FRAME_RATE);
        assert_eq!(config["fuser"]["sum"], json!(["delay"]));
        let config = asr_of("conditioning_learnt_padding = true", number).unwrap();
        assert_eq!(config["conditioners"]["delay"]["continuous"]["value"], Value::Null);
        assert_eq!(config["stt_config"]["audio_delay_seconds"], 6.0 / FRAME_RATE);
        // Without such a condition it is the delay alone.
        let config = asr_of("conditioning_delay = 2.0", "").unwrap();
        assert_eq!(config["stt_config"]["audio_delay_seconds"], 26.0 / FRAME_RATE);
        assert_eq!(asr_of("conditioning_delay = 60.0", "").unwrap()["model_type"], "stt");
        for (more, conditioners, says) in [
            ("", number, "give conditioning_delay"),
            ("conditioning_delay = 1.0\nconditioning_learnt_padding = true", number, "one of them"),
            ("conditioning_delay = -1.0", number, "-1"),
            ("conditioning_delay = 60.1", "", "60.1"),
            ("", &number.replace("delay", "speed"), "'speed'"),
        ] {
            let error = asr_of(more, conditioners).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn what_no_published_model_has_is_named() {
        let mut odd = tr(8, 32);
        odd.bias_attn = true;
        assert!(check(&odd).unwrap_err().contains("bias_attn"));
        assert!(check(&tr(8, 32)).is_ok());
    }
}
