//! Prompts of frame decoders: rows of tokens that streams begin with, several streams in one pass.

use voce_runtime::{Exec, KvCache, KvSpec, RuntimeError, Span};

use super::{FrameDecoder, FrameState};

/// What a stream begins with.
#[derive(Clone, Copy, Debug)]
pub struct FramePrompt<'a> {
    /// The stream's slot.
    pub slot: usize,
    /// Rows of as many tokens as a frame has columns; a token that a table lacks adds nothing. The last row is the
    /// input of the first frame.
    pub rows: &'a [u32],
    /// A vector that is added to one of the rows but the last.
    pub vector: Option<(usize, &'a [f32])>,
}

impl FrameDecoder {
    /// Begins streams: all rows of their prompts but the last go through the layers, the last waits for the first
    /// frame. Prompts share passes as far as a state's rows allow.
    pub fn begin(&self, exec: &mut Exec, state: &mut FrameState, prompts: &[FramePrompt<'_>]) {
        let columns = self.config().columns();
        let most = state.x.rows();
        let mut pass = Pass::default();
        let slots: Vec<usize> = prompts.iter().map(|prompt| prompt.slot).collect();
        let last: Vec<u32> =
            prompts.iter().flat_map(|p| &p.rows[p.rows.len() - columns..]).copied().collect();
        state.start_all(exec, &slots, &last);
        for prompt in prompts {
            let count = prompt.rows.len() / columns;
            assert!(count > 0 && prompt.rows.len() == count * columns, "whole rows, and at least one");
            let (mut from, before) = (0, count - 1);
            while from < before {
                let rows = (before - from).min(most - pass.rows);
                if let Some((at, vector)) = prompt.vector.filter(|(at, _)| (from..from + rows).contains(at)) {
                    pass.vectors.push(pass.rows + at - from);
                    pass.values.extend_from_slice(vector);
                }
                pass.tokens.extend_from_slice(&prompt.rows[from * columns..(from + rows) * columns]);
                pass.spans.push(Span { slot: prompt.slot, rows });
                pass.rows += rows;
                from += rows;
                if pass.rows == most {
                    self.run_pass(exec, state, &mut pass);
                }
            }
        }
        if pass.rows > 0 {
            self.run_pass(exec, state, &mut pass);
        }
        // Prompts are each of their own length; the steps that follow are not, and repeat.
        exec.begin();
    }

    /// The rows of a prompt as the layers get them, but the last one; no more of them than one pass has.
    pub fn prompt_rows(&self, exec: &mut Exec, state: &mut FrameState, prompt: &FramePrompt<'_>) -> Vec<f32> {
        let count = prompt.rows.len() / self.config().columns() - 1;
        let (vectors, values) = match prompt.vector {
            Some((at, vector)) => (vec![at], vector.to_vec()),
            None => Default::default(),
        };
        let tokens = prompt.rows[..count * self.config().columns()].to_vec();
        let spans = Vec::new();
        self.embed_pass(exec, state, &Pass { rows: count, tokens, spans, vectors, values });
        exec.fetch(&mut state.x, count);
        state.x.head(count).to_vec()
    }

    fn run_pass(&self, exec: &mut Exec, state: &mut FrameState, pass: &mut Pass) {
        self.embed_pass(exec, state, pass);
        self.decoder().run(exec, &mut state.x, &pass.spans, &mut state.decoder);
        *pass = Pass::default();
    }

    fn embed_pass(&self, exec: &mut Exec, state: &mut FrameState, pass: &Pass) {
        let rows: Vec<usize> = (0..pass.rows).collect();
        exec.set_tokens(&mut state.prompt, &rows, 0, &pass.tokens);
        self.embed_rows(exec, state, &rows, true);
        if !pass.vectors.is_empty() {
            let picked: Vec<usize> = (0..pass.vectors.len()).collect();
            exec.gather_rows(&state.x, &pass.vectors[..], 0, &mut state.picked);
            exec.set_rows(&mut state.vectors, &picked, &pass.values);
            exec.add_scaled(&state.vectors, 1.0, picked.len(), &mut state.picked);
            exec.scatter_rows(&state.picked, &pass.vectors[..], &mut state.x);
        }
    }

    /// Makes room for more positions; streams in progress go on as before, whether there is memory for it or not.
    pub fn grow(
        &self,
        exec: &mut Exec,
        state: &mut FrameState,
        positions: usize,
    ) -> Result<(), RuntimeError> {
        let spec = *state.decoder.cache.spec();
        let mut grown = KvCache::new(KvSpec { capacity: positions.max(spec.capacity), ..spec });
        exec.reserve_cache(&mut grown)?;
        for slot in 0..spec.slots {
            exec.copy_prefix(&mut grown, slot, &state.decoder.cache, slot, state.position(slot));
        }
        state.decoder.cache = grown;
        Ok(())
    }
}

/// Rows that go through the layers together.
#[derive(Default)]
struct Pass {
    rows: usize,
    tokens: Vec<u32>,
    spans: Vec<Span>,
    /// Rows that a vector is added to, and the vectors.
    vectors: Vec<usize>,
    values: Vec<f32>,
}
