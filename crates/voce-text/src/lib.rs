//! Tokenisers, sentence splitting and text normalisation for speech.
//!
//! Text meets this crate in this order: [`utf8`] decodes bytes, [`markup`] takes Markdown, HTML and emoji out, [`stream`] cuts sentences out of text that is still
//! arriving, [`pauses`] takes pause tags out, [`normalize`] reads numbers and symbols out, [`prompt`] applies a
//! model's text rules and cuts chunks, and [`tokenizer`] turns each chunk into ids. [`letters`] writes words
//! with the letters that a model has.
#![forbid(unsafe_code)]

mod error;
pub mod letters;
pub mod markup;
pub mod normalize;
pub mod pauses;
pub mod prompt;
pub mod stream;
pub mod tokenizer;
pub mod utf8;

pub use error::{TextError, TokenizerError};
pub use markup::{MarkupStream, strip_markup};
pub use normalize::normalize_english;
pub use pauses::{PauseBudget, Segment, parse_pauses, parse_pauses_within};
pub use prompt::{Prepared, PromptRules, in_alphabet, prepare, says_something, split_into_chunks};
pub use stream::SentenceStream;
pub use tokenizer::{Detokenizer, Tokenizer};
pub use utf8::Utf8Stream;
