//! The name of a unit's result: a hash of all that it depends on.

use sha2::{Digest as _, Sha256};

use crate::unit::{Input, Settings, Unit};
use crate::{HearSettings, TextFormat};

/// First bytes of what is hashed: results of other rules get other names.
const RULES: &str = "voce unit 1";
/// Letters of a label: 64 bits, so that a thousand million units share none.
const LETTERS: usize = 16;

/// A hash of a unit, a model's revision and the settings, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(String);

impl Label {
    /// The label of a unit. `revision` tells the model and its precision.
    pub fn new(unit: &Unit, revision: &str, settings: &Settings) -> Self {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        add(RULES);
        add(&unit.id);
        add(revision);
        add(&json(settings));
        match &unit.input {
            // A file may move: the id says which it is.
            Input::Audio { offset, duration, .. } => add(&json(&(offset, duration))),
            Input::Text { text, voice, seed } => add(&json(&(text, voice, seed))),
        }
        if matches!(settings, Settings::Hear(HearSettings { format: TextFormat::Nemo, .. })) {
            add(&json(&unit.fields));
        }
        let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        Self(hex[..LETTERS].to_owned())
    }

    /// A label that somebody wrote down.
    pub fn parse(text: &str) -> Option<Self> {
        let good = text.len() == LETTERS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        good.then(|| Self(text.to_owned()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The file name of the unit's result: its stem, its label and an extension.
    pub fn file_name(&self, unit: &Unit, settings: &Settings) -> String {
        format!("{}.{}.{}", unit.stem(), self.0, settings.extension())
    }
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Values that go into a label have an order of their own.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SaySettings;

    #[test]
    fn everything_that_matters_changes_the_label() {
        let unit = Unit::file("a.wav");
        let hear = Settings::Hear(HearSettings::default());
        let base = Label::new(&unit, "r1", &hear);
        assert_eq!(base, Label::new(&unit, "r1", &hear));
        assert_eq!(Label::parse(base.as_str()), Some(base.clone()));
        // Where the file lies does not matter, its name in the list does.
        let moved = Unit { id: "a.wav".into(), ..Unit::file("/elsewhere/a.wav") };
        assert_eq!(base, Label::new(&moved, "r1", &hear));
        let beam = Settings::Hear(HearSettings { beam: 4, ..Default::default() });
        let part = Input::Audio { path: "a.wav".into(), offset: Some(1.0), duration: None };
        let others = [
            Label::new(&Unit::file("b.wav"), "r1", &hear),
            Label::new(&unit, "r2", &hear),
            Label::new(&unit, "r1", &beam),
            Label::new(&Unit { input: part, ..unit.clone() }, "r1", &hear),
            Label::new(&unit, "r1", &Settings::Say(SaySettings::default())),
        ];
        assert!(others.iter().all(|o| *o != base));
        assert_eq!(base.file_name(&unit, &hear), format!("a.{base}.txt"));
        for bad in ["", "xyz", "0123456789ABCDEF", "0123456789abcdef0", "../../../etc/pas"] {
            assert_eq!(Label::parse(bad), None, "{bad}");
        }
    }
}
