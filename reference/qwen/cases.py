"""The small models: configurations in the published layout, and the runs of each.

Every case differs from the others in what a configuration can vary; README.md has the table.
"""

CODEBOOK = 32  # entries of a codebook (published: 2048)
CONTROL = 1024  # ids behind the codes, all suppressed but EOS

LANGUAGES = {"chinese": 7, "english": 2, "german": 5, "italian": 22, "portuguese": 23, "spanish": 6, "japanese": 10,
             "korean": 16, "french": 13, "russian": 21}
SPEAKERS = {"serena": 1018, "vivian": 1017, "uncle_fu": 962, "ryan": 1013, "aiden": 813, "eric": 827, "dylan": 830}
DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}

TEXT = "Hello there, it's a tiny test: naïve café 你好 42!"
SHORT = "Yes."

GENERATION = dict(do_sample=True, repetition_penalty=1.05, temperature=0.9, top_p=1.0, top_k=50, subtalker_dosample=True,
                  subtalker_temperature=0.9, subtalker_top_p=1.0, subtalker_top_k=50, max_new_tokens=8192)

PUBLISHED_CODEC = dict(
    rate=24000, frame=1920,
    decoder=dict(attention_bias=False, attention_dropout=0.0, latent_dim=16, codebook_dim=16, codebook_size=CODEBOOK, decoder_dim=32,
                 hidden_act="silu", hidden_size=12, intermediate_size=20, layer_scale_initial_scale=0.01,
                 max_position_embeddings=8000, head_dim=8, num_attention_heads=2, num_hidden_layers=2,
                 num_key_value_heads=2, num_quantizers=16, num_semantic_quantizers=1, rms_norm_eps=1e-5, rope_theta=10000,
                 semantic_codebook_size=4096, sliding_window=6, upsample_rates=[8, 5, 4, 3], upsampling_ratios=[2, 2],
                 vector_quantization_hidden_dimension=16),
    encoder=dict(_frame_rate=12.5, attention_bias=False, attention_dropout=0.0, audio_channels=1, codebook_dim=8,
                 codebook_size=CODEBOOK, compress=2, dilation_growth_rate=2, head_dim=8, hidden_act="gelu", hidden_size=16,
                 initializer_range=0.02, intermediate_size=24, kernel_size=7, last_kernel_size=3, layer_scale_initial_scale=0.01,
                 max_position_embeddings=8000, norm_eps=1e-5, normalize=False, num_attention_heads=2, num_filters=2,
                 num_hidden_layers=2, num_key_value_heads=2, num_quantizers=20, num_residual_layers=1, num_semantic_quantizers=1,
                 pad_mode="constant", residual_kernel_size=3, rope_theta=10000.0, sampling_rate=24000, sliding_window=250,
                 trim_right_ratio=1.0, upsample_groups=16, upsampling_ratios=[8, 6, 5, 4], use_cache=False, use_causal_conv=True,
                 use_conv_shortcut=False, use_streaming=False, vector_quantization_hidden_dimension=8),
)


def codec_config(rate=24000, frame=1920, decoder=None, encoder=None) -> dict:
    dec = PUBLISHED_CODEC["decoder"] | (decoder or {})
    enc = PUBLISHED_CODEC["encoder"] | {"sampling_rate": rate, "_frame_rate": rate / frame} | (encoder or {})
    return dict(architectures=["Qwen3TTSTokenizerV2Model"], model_type="qwen3_tts_tokenizer_12hz",
                encoder_valid_num_quantizers=dec["num_quantizers"], input_sample_rate=rate, output_sample_rate=rate,
                decode_upsample_rate=frame, encode_downsample_rate=frame, decoder_config=dec, encoder_config=enc)


def model_config(kind, size, tokens, vocab, text_vocab, talker, predictor, groups, speaker=None) -> dict:
    off = CODEBOOK
    languages = {k: off + v for k, v in LANGUAGES.items()}
    speakers, dialects = {}, {}
    if kind == "custom_voice":
        languages |= dict(beijing_dialect=off + 26, sichuan_dialect=off + 14)
        speakers = {k: off + v for k, v in SPEAKERS.items()}
        dialects = {k: DIALECTS.get(k, False) for k in SPEAKERS}
    cp = dict(attention_bias=False, attention_dropout=0, head_dim=8, hidden_act="silu", hidden_size=16, initializer_range=0.02,
              intermediate_size=40, max_position_embeddings=65536, max_window_layers=28,
              model_type="qwen3_tts_talker_code_predictor", num_attention_heads=4, num_code_groups=groups, num_hidden_layers=2,
              num_key_value_heads=2, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1000000, sliding_window=None,
              use_cache=True, use_sliding_window=False, vocab_size=CODEBOOK) | predictor
    cp["layer_types"] = ["full_attention"] * cp["num_hidden_layers"]
    tk = dict(attention_bias=False, attention_dropout=0, code_predictor_config=cp, codec_bos_id=off + 101,
              codec_eos_token_id=off + 102, codec_think_id=off + 106, codec_language_id=languages, codec_nothink_id=off + 107,
              codec_pad_id=off + 100, codec_think_bos_id=off + 108, codec_think_eos_id=off + 109, spk_id=speakers,
              spk_is_dialect=dialects, head_dim=8, hidden_act="silu", hidden_size=24, initializer_range=0.02,
              intermediate_size=56, max_position_embeddings=32768, model_type="qwen3_tts_talker", num_attention_heads=4,
              num_code_groups=groups, num_hidden_layers=3, num_key_value_heads=2, position_id_per_seconds=13, rms_norm_eps=1e-6,
              rope_scaling=dict(interleaved=True, mrope_section=[2, 1, 1], rope_type="default", type="default"),
              rope_theta=1000000, sliding_window=None, text_hidden_size=20, text_vocab_size=text_vocab, use_cache=True,
              use_sliding_window=False, vocab_size=CODEBOOK + CONTROL) | talker
    c = dict(architectures=["Qwen3TTSForConditionalGeneration"], assistant_token_id=vocab["assistant"],
             im_end_token_id=tokens["<|im_end|>"], im_start_token_id=tokens["<|im_start|>"],
             tts_bos_token_id=tokens["<tts_text_bos>"], tts_eos_token_id=tokens["<tts_text_eod>"],
             tts_pad_token_id=tokens["<tts_pad>"], model_type="qwen3_tts", tokenizer_type="qwen3_tts_tokenizer_12hz",
             tts_model_size=size, tts_model_type=kind, talker_config=tk, transformers_version="4.57.3")
    if kind == "base":
        c["speaker_encoder_config"] = dict(enc_dim=tk["hidden_size"], sample_rate=24000, mel_dim=128, enc_channels=[16, 16, 16, 16, 48],
                                           enc_kernel_sizes=[5, 3, 3, 3, 1], enc_dilations=[1, 2, 3, 4, 1],
                                           enc_attention_channels=8, enc_res2net_scale=4, enc_se_channels=8) | (speaker or {})
    return c


# A codec of 192 samples a frame at 2400 Hz keeps dumps small.
SMALL_RATE = dict(rate=2400, frame=192,
                  decoder=dict(upsample_rates=[8, 3], upsampling_ratios=[4, 2]),
                  encoder=dict(upsampling_ratios=[6, 4, 4]))

CASES = {
    "base_1b7": dict(
        kind="base", size="1b7", groups=16, dtype="bf16", talker={}, predictor={}, codec={}, ref_s=0.83,
        runs={
            "xvector": dict(text=TEXT, language="English", clone="xvector", audio=True),
            "xvector_whole": dict(text=SHORT, language="Auto", clone="xvector", non_streaming_mode=True),
            "icl": dict(text=TEXT, language="English", clone="icl", audio=True),
            "icl_short": dict(text=SHORT, language="German", clone="icl"),
            "icl_whole": dict(text=TEXT, language="English", clone="icl", non_streaming_mode=True),
        }),
    "base_0b6": dict(
        kind="base", size="0b6", groups=8, dtype="f32", shards=2, ref_s=0.61,
        talker=dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=16, intermediate_size=48,
                    rope_scaling=dict(interleaved=True, mrope_section=[4, 2, 2], rope_type="default", type="default"),
                    rope_theta=500000, rms_norm_eps=1e-5),
        predictor=dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, rope_theta=20000),
        codec=dict(rate=24000, frame=960,
                   decoder=dict(num_quantizers=8, latent_dim=20, codebook_dim=12, decoder_dim=24, hidden_size=16, head_dim=4,
                                num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3, sliding_window=4,
                                upsample_rates=[8, 5, 3], upsampling_ratios=[2, 4], rope_theta=5000, attention_bias=True,
                                rms_norm_eps=1e-6),
                   encoder=dict(upsampling_ratios=[6, 5, 4, 4], num_quantizers=11, num_residual_layers=2, compress=1,
                                vector_quantization_hidden_dimension=16, codebook_dim=16, num_hidden_layers=3, head_dim=4,
                                num_attention_heads=4, num_key_value_heads=4, kernel_size=5, last_kernel_size=5,
                                residual_kernel_size=5, rope_theta=8000.0)),
        speaker=dict(enc_channels=[12, 12, 12, 24], enc_kernel_sizes=[3, 5, 3, 1], enc_dilations=[1, 2, 1, 1], enc_res2net_scale=3,
                     enc_attention_channels=6, enc_se_channels=5),
        runs={
            "xvector": dict(text=TEXT, language="Auto", clone="xvector", audio=True),
            "icl": dict(text=TEXT, language="Chinese", clone="icl", audio=True),
        }),
    "custom_0b6": dict(
        kind="custom_voice", size="0b6", groups=16, dtype="bf16", talker=dict(hidden_size=16), predictor=dict(hidden_size=16),
        codec=SMALL_RATE, eos="ryan_en",
        runs={
            "ryan_en": dict(text=TEXT, language="English", speaker="Ryan", audio=True),
            "auto_streaming": dict(text=TEXT, language="Auto", speaker="vivian", non_streaming_mode=False, audio=True),
            "dialect": dict(text="你好吗", language="Chinese", speaker="eric"),
            "dialect_auto": dict(text="你好吗", language="Auto", speaker="dylan"),
            "dialect_english": dict(text="Beijing", language="English", speaker="dylan"),
            "instruct_dropped": dict(text=SHORT, language="English", speaker="ryan", instruct="Speak slowly."),
        }),
    "custom_1b7": dict(
        kind="custom_voice", size="1b7", groups=12, dtype="bf16",
        talker=dict(num_hidden_layers=2, text_hidden_size=28, num_attention_heads=6, num_key_value_heads=2),
        predictor=dict(num_hidden_layers=1), codec=SMALL_RATE | {"decoder": SMALL_RATE["decoder"] | dict(num_quantizers=12)},
        runs={
            "instruct": dict(text=TEXT, language="English", speaker="aiden", instruct="Speak slowly.", audio=True),
            "plain": dict(text=SHORT, language="Japanese", speaker="SERENA"),
        }),
    "design_1b7": dict(
        kind="voice_design", size="1b7", groups=16, dtype="bf16", talker={}, predictor={}, codec=SMALL_RATE, eos="french",
        runs={
            "french": dict(text=TEXT, language="French", instruct="A calm, deep voice.", audio=True),
            "streaming": dict(text=TEXT, language="Auto", instruct="warm, low, slow", non_streaming_mode=False),
            "no_instruct": dict(text=SHORT, language="English", instruct=""),
        }),
}
