//! Language codes of the multilingual streaming models, for checkpoints that do not carry their own list.

use super::config::PromptConfig;
use crate::hearing::language;

/// Slot of the code `auto`, with which the model finds the language itself.
const AUTO: usize = 101;

/// Published codes, slot by slot.
const SLOTS: &[(usize, &[&str])] = &[
    (0, &["en-US", "en"]),
    (1, &["en-GB", "enGB"]),
    (2, &["es-ES", "esES"]),
    (3, &["es-US", "es"]),
    (4, &["zh-CN", "zh-ZH"]),
    (5, &["zh-TW"]),
    (6, &["hi-IN", "hi", "hi-HI"]),
    (7, &["ar-AR", "ar"]),
    (8, &["fr-FR", "fr"]),
    (9, &["de-DE", "de"]),
    (10, &["ja-JP", "ja-JA"]),
    (11, &["ru-RU", "ru"]),
    (12, &["pt-BR"]),
    (13, &["pt-PT", "pt"]),
    (14, &["ko-KR", "ko", "ko-KO"]),
    (15, &["it-IT", "it"]),
    (16, &["nl-NL", "nl"]),
    (17, &["pl-PL", "pl"]),
    (18, &["tr-TR", "tr"]),
    (19, &["uk-UA", "uk"]),
    (20, &["ro-RO", "ro"]),
    (21, &["el-GR", "el"]),
    (22, &["cs-CZ", "cs"]),
    (23, &["hu-HU", "hu"]),
    (24, &["sv-SE", "sv"]),
    (25, &["da-DK", "da"]),
    (26, &["fi-FI", "fi"]),
    (27, &["no-NO", "no"]),
    (28, &["sk-SK", "sk"]),
    (29, &["hr-HR", "hr"]),
    (30, &["bg-BG", "bg"]),
    (31, &["lt-LT", "lt"]),
    (32, &["th-TH"]),
    (33, &["vi-VN"]),
    (34, &["id-ID"]),
    (35, &["ms-MY"]),
    (36, &["bn-IN"]),
    (37, &["ur-PK"]),
    (38, &["fa-IR"]),
    (39, &["ta-IN"]),
    (40, &["te-IN"]),
    (41, &["mr-IN"]),
    (42, &["gu-IN"]),
    (43, &["kn-IN"]),
    (44, &["ml-IN"]),
    (45, &["si-LK"]),
    (46, &["ne-NP"]),
    (47, &["km-KH"]),
    (48, &["sw-KE"]),
    (49, &["am-ET"]),
    (50, &["ha-NG"]),
    (51, &["zu-ZA"]),
    (52, &["yo-NG"]),
    (53, &["ig-NG"]),
    (54, &["af-ZA"]),
    (55, &["rw-RW"]),
    (56, &["so-SO"]),
    (57, &["ny-MW"]),
    (58, &["ln-CD"]),
    (59, &["or-KE"]),
    (60, &["et-EE", "et"]),
    (61, &["lv-LV", "lv"]),
    (62, &["sl-SI", "sl"]),
    (64, &["he-IL"]),
    (65, &["ku-TR"]),
    (66, &["az-AZ"]),
    (67, &["ka-GE"]),
    (68, &["hy-AM"]),
    (69, &["uz-UZ"]),
    (70, &["tg-TJ"]),
    (71, &["ky-KG"]),
    (80, &["qu-PE"]),
    (81, &["ay-BO"]),
    (82, &["gn-PY"]),
    (83, &["nah-MX"]),
    (96, &["mi-NZ"]),
    (97, &["haw-US"]),
    (98, &["sm-WS"]),
    (99, &["to-TO"]),
    (100, &["fr-CA"]),
    (101, &["auto"]),
    (102, &["mt-MT"]),
    (103, &["nb-NO", "nb"]),
    (104, &["nn-NO", "nn"]),
];

/// A prompt of `slots` languages, as far as the published list fits; its width is for the caller to set.
pub(super) fn prompt(slots: usize) -> PromptConfig {
    let published = SLOTS.iter().filter(|(slot, _)| *slot < slots);
    let languages =
        published.flat_map(|(slot, codes)| codes.iter().map(|code| ((*code).to_owned(), *slot))).collect();
    PromptConfig { slots, hidden: 0, languages, default: if AUTO < slots { AUTO } else { 0 } }
}

impl PromptConfig {
    /// The slot of a language code, in any [spelling](language::position).
    pub fn slot(&self, asked: &str) -> Option<usize> {
        let at = language::position(self.languages.iter().map(|(code, _)| code.as_str()), asked)?;
        Some(self.languages[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_in_every_spelling() {
        let p = prompt(128);
        assert_eq!(p.default, 101);
        for (code, slot) in [
            ("en-US", 0),
            ("en", 0),
            ("EN_gb", 1),
            ("th", 32),
            ("auto", 101),
            ("nb-NO", 103),
            ("ja", 10),
            ("zh_tw", 5),
            ("pt", 13),
            ("en-AU", 0),
        ] {
            assert_eq!(p.slot(code), Some(slot), "{code}");
        }
        assert_eq!(p.slot("xx"), None);
        assert_eq!(p.slot("th-XX"), None);
    }

    #[test]
    fn a_short_prompt_keeps_only_what_fits() {
        let p = prompt(4);
        assert_eq!(p.default, 0);
        assert!(p.languages.iter().all(|(_, slot)| *slot < 4));
    }
}
