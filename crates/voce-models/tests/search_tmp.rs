mod decoders;
use std::sync::Arc;
use std::time::Instant;
use voce_models::fastconformer::*;
use voce_models::transducer::*;
use voce_nn::weights::{RandomWeights, SafetensorsFile};
use voce_nn::*;
use voce_runtime::*;

#[test]
fn timing() {
    for (v, layers) in [(1024usize, 1usize), (1024, 2), (13087, 2)] {
        for precision in [Precision::Bf16, Precision::Int8] {
            let mut config = decoders::config(decoders::Kind::Rnnt, &[]);
            config.vocab = v; config.encoder.dim = 1024;
            config.head = Head::Rnnt(PredictorConfig { hidden: 640, layers, joint: 640, max_symbols: 10 });
            let loader = Loader::new(Arc::new(RandomWeights::new(1, |n| n.contains("bias"))));
            let mut exec = Exec::new(1).unwrap();
            let formats = Formats::new(precision, exec.isa());
            let p = PredictorConfig { hidden: 640, layers, joint: 640, max_symbols: 10 };
            let joint = Joint::load(&loader, &p, 1024, v + 1, formats).unwrap();
            let pred = Predictor::load(&loader, &p, v, formats).unwrap();
            for rows in [1usize, 4, 16, 64] {
                let frames = Buffer::new(rows, 640);
                let mut lanes = pred.lanes(rows);
                let mut js = joint.scratch(rows); let mut ps = pred.scratch(rows);
                let idx: Vec<usize> = (0..rows).collect();
                let mut moves = Moves::default();
                for r in 0..rows { moves.push((r * 7 % v) as u32, r, r); }
                let mut out = vec![Choice::default(); rows];
                let mut sums = vec![0f32; rows]; let mut cands = vec![Candidate::default(); rows * 4];
                let best = |f: &mut dyn FnMut()| { f(); (0..40).map(|_| { let t = Instant::now(); f(); t.elapsed().as_secs_f64() * 1e6 }).fold(1e9, f64::min) };
                let j = best(&mut || joint.run(&mut exec, &AddReluOp { a: &frames, a_rows: &idx, b: lanes.out(), b_rows: &idx }, &mut js));
                let c = best(&mut || exec.choose(&js.logits, rows, 0..v + 1, Confidence::MaxProb, &mut out));
                let k = best(&mut || exec.top_k(&js.logits, rows, 0..v + 1, 4, &mut sums, &mut cands));
                let p = best(&mut || pred.step(&mut exec, &moves, &mut lanes, &mut ps));
                println!("V {v} L {layers} {precision} {} rows {rows}: joint {j:.1} us ({:.2}/row) choose {c:.2} top4 {k:.2} predictor {p:.1} us", exec.isa(), j / rows as f64);
            }
        }
    }
}

#[test]
fn first() {
    let dir = std::path::Path::new("/work/fc/first");
    let man: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(dir.join("manifest.json")).unwrap()).unwrap();
    let mut exec = Exec::new(1).unwrap();
    for name in ["nemotron_tiny", "parakeet_rnnt_tiny", "parakeet_tdt_tiny", "parakeet_ctc_tiny"] {
        let cfg = std::fs::read_to_string(dir.join(name).join("config.json")).unwrap();
        let config = match FastConformerConfig::from_hf_json(&cfg, &[]) { Ok(c) => c, Err(e) => { println!("{name} {e}"); continue } };
        let source: Arc<dyn Weights> = Arc::new(SafetensorsFile::open(&dir.join(name).join("model.safetensors")).unwrap());
        let loader = Loader::new(canonical(source));
        let d = Decoder::load(&loader, &config, Formats::new(Precision::F32, exec.isa())).unwrap();
        let io = SafetensorsFile::open(&dir.join(format!("{name}_io.safetensors"))).unwrap();
        let res = &man["models"][name]["results"];
        let mut sets = vec![];
        if name == "nemotron_tiny" { for r in ["R3","R1","R0"] { sets.push((format!("off.{r}.enc_proj"), res[r].clone())); } }
        else if name == "parakeet_ctc_tiny" { sets.push(("logits".into(), res.clone())); }
        else { sets.push(("enc_proj".into(), res.clone())); }
        for (input, want) in sets {
            let v = io.get(&input, &[]).unwrap().unwrap().values;
            let w = d.frame_width(); let n = v.len() / w;
            let mut f = Buffer::new(n, w); f.head_mut(n).copy_from_slice(&v);
            let mut run = |o: &SearchOptions| { let mut s = Search::new(&d, 1); let mut st = [SearchState::new(&d, o).unwrap()];
                s.step(&mut exec, &d, &f, &[Span { slot: 0, rows: n }], &mut st); s.flush(&mut exec, &d, &mut st); st[0].finish() };
            let ids = |v: &serde_json::Value| v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect::<Vec<_>>();
            let g = run(&SearchOptions::default());
            let wg = if name.contains("ctc") { ids(&want["collapsed"]) } else { ids(&want["greedy"]["tokens"]) };
            println!("{name} {input} greedy {}", decoders::labels(&g[0].tokens) == wg);
            let mut cmp = |what: &str, o: SearchOptions, w: &serde_json::Value| { let h = run(&o);
                let w = w.as_array().unwrap();
                let ok = h.len() == w.len() && h.iter().zip(w).all(|(h, w)| decoders::labels(&h.tokens) == ids(&w["tokens"]) && (h.score - w["score"].as_f64().unwrap()).abs() < 1e-3);
                println!("{name} {input} {what} {ok} {} {}", h.len(), w.len()); };
            if want.get("malsd").is_some() { cmp("malsd", SearchOptions::with_beam(4), &want["malsd"]); }
            if want.get("modified_beam_search").is_some() { cmp("mbs", SearchOptions { method: Method::ModifiedBeam, ..SearchOptions::with_beam(4) }, &want["modified_beam_search"]); }
            if let Some(hw) = want.get("hotwords") {
                let phrases: Vec<(Vec<u32>, f32)> = hw["phrases"].as_array().unwrap().iter().map(|p| (ids(p), 1.5)).collect();
                let b = Boost::new(phrases, BoostRule { depth_scaling: 0.0, completion: Completion::Refund }).unwrap();
                cmp("hotwords", SearchOptions { method: Method::ModifiedBeam, boost: Some(Arc::new(b)), pruning: Pruning::Early, ..SearchOptions::with_beam(4) }, &hw["result"]);
            }
        }
    }
}
