//! English text as it is spoken: numbers, dates, money, units, abbreviations and symbols become words.
//!
//! Each pass takes one kind of thing, in an order that lets the more specific one win: a date before a fraction,
//! a phone number before a range. What no pass knows stays as it is, so other languages pass through.

mod clock;
mod dates;
mod figures;
mod measures;
mod numbers;
mod phrases;
mod rewrite;
mod roman;
mod web;

use std::borrow::Cow;

pub use web::{Signs, read_addresses};

type Pass = fn(Cow<'_, str>) -> Cow<'_, str>;

/// Reads numbers, dates, times, money, units, abbreviations, addresses and symbols out in English.
///
/// ```
/// assert_eq!(voce_text::normalize_english("Dr. Lee paid $5.20 on 1/31/2024."),
///     "Doctor Lee paid five dollars and twenty cents on January thirty-first, twenty twenty-four.");
/// ```
pub fn normalize_english(text: &str) -> Cow<'_, str> {
    const PASSES: &[Pass] = &[
        web::addresses,
        phrases::marked_numbers,
        dates::dates,
        clock::times,
        measures::money,
        figures::phones,
        measures::percents,
        measures::units,
        roman::numerals,
        phrases::abbreviations,
        figures::fractions,
        figures::versions,
        figures::ranges,
        figures::ordinals,
        figures::plain,
        phrases::symbols,
    ];
    PASSES.iter().fold(Cow::Borrowed(text), |text, pass| pass(text))
}
