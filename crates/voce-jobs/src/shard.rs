//! Which part of a list this process does.

use std::str::FromStr;

/// One of several equal parts of a list: every `count`-th line from `index` on, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u64,
    count: u64,
}

/// Why there is no such part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// Not `i/n`.
    #[error("'{0}' is no part of a list: use i/n with i from 0 to n-1, such as 0/4 to 3/4, or none")]
    Text(String),
    /// The environment has an index and no count.
    #[error(
        "this is index {0} of a Kubernetes Indexed Job, but of how many is not known: set VOCE_SHARDS to the Job's \
         completions, or give --shard {0}/COUNT, or --shard none"
    )]
    NoCount(String),
    /// What the environment says makes no sense.
    #[error("{name} is '{value}', which is no index here: give --shard i/n, or --shard none")]
    Environment {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
}

impl Shard {
    /// All of it.
    pub const WHOLE: Shard = Shard { index: 0, count: 1 };

    /// Part `index` of `count`, if there is one.
    pub fn new(index: u64, count: u64) -> Option<Self> {
        (index < count).then_some(Self { index, count })
    }

    /// The part that a batch system has given this process: a SLURM array's task, or a pod of an Indexed Job together
    /// with `VOCE_SHARDS`. The whole list where there is none.
    pub fn from_environment(var: impl Fn(&str) -> Option<String>) -> Result<Self, ShardError> {
        let number = |name: &'static str| match var(name) {
            None => Ok(None),
            Some(value) => match value.parse::<u64>() {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(ShardError::Environment { name, value }),
            },
        };
        let made = |index, count, name: &'static str| {
            let value = format!("{index}");
            Self::new(index, count).ok_or(ShardError::Environment { name, value })
        };
        if let (Some(id), Some(count)) = (number("SLURM_ARRAY_TASK_ID")?, number("SLURM_ARRAY_TASK_COUNT")?) {
            // An array may start anywhere and leave numbers out.
            let first = number("SLURM_ARRAY_TASK_MIN")?.unwrap_or(0);
            let step = number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1).max(1);
            return made(id.saturating_sub(first) / step, count, "SLURM_ARRAY_TASK_ID");
        }
        if let Some(index) = number("JOB_COMPLETION_INDEX")? {
            let count = number("VOCE_SHARDS")?.ok_or_else(|| ShardError::NoCount(index.to_string()))?;
            return made(index, count, "JOB_COMPLETION_INDEX");
        }
        Ok(Self::WHOLE)
    }

    /// Whether a line, counted from 0, belongs to this part.
    pub fn has(self, line: u64) -> bool {
        line % self.count == self.index
    }

    /// Whether it is all of the list.
    pub fn is_whole(self) -> bool {
        self.count == 1
    }

    /// What stands in the names of its files: `0-of-4`.
    pub fn tag(self) -> String {
        format!("{}-of-{}", self.index, self.count)
    }

    /// The name of a file that each part has for itself: `failed.jsonl`, or `failed-0-of-4.jsonl`.
    pub fn file(self, stem: &str, extension: &str) -> String {
        if self.is_whole() {
            format!("{stem}.{extension}")
        } else {
            format!("{stem}-{}.{extension}", self.tag())
        }
    }
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        if text == "none" {
            return Ok(Self::WHOLE);
        }
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        parts.and_then(|(i, n)| Self::new(i, n)).ok_or_else(|| ShardError::Text(text.to_owned()))
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_line_once() {
        for count in 1..8 {
            let parts: Vec<Shard> = (0..count).map(|i| Shard::new(i, count).unwrap()).collect();
            for line in 0..100 {
                assert_eq!(parts.iter().filter(|p| p.has(line)).count(), 1);
            }
        }
    }

    #[test]
    fn texts() {
        assert_eq!("2/3".parse(), Ok(Shard { index: 2, count: 3 }));
        assert_eq!("none".parse(), Ok(Shard::WHOLE));
        for bad in ["3/3", "0/0", "1", "-1/2", "a/b", ""] {
            assert!(bad.parse::<Shard>().is_err(), "{bad}");
        }
        assert_eq!("0/4".parse::<Shard>().unwrap().file("failed", "jsonl"), "failed-0-of-4.jsonl");
        assert_eq!(Shard::WHOLE.file("failed", "jsonl"), "failed.jsonl");
    }

    #[test]
    fn batch_systems() {
        let of = |vars: &[(&str, &str)]| {
            let vars = vars.to_vec();
            Shard::from_environment(move |name| {
                vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
            })
        };
        assert_eq!(of(&[]), Ok(Shard::WHOLE));
        let array = [("SLURM_ARRAY_TASK_ID", "3"), ("SLURM_ARRAY_TASK_COUNT", "4")];
        assert_eq!(of(&array), Ok(Shard { index: 3, count: 4 }));
        let odd = [("SLURM_ARRAY_TASK_MIN", "1"), ("SLURM_ARRAY_TASK_STEP", "2")];
        assert_eq!(of(&[&array[..], &odd].concat()), Ok(Shard { index: 1, count: 4 }));
        assert_eq!(of(&[("SLURM_ARRAY_TASK_ID", "7")]), Ok(Shard::WHOLE));
        assert!(of(&[("SLURM_ARRAY_TASK_ID", "9"), ("SLURM_ARRAY_TASK_COUNT", "4")]).is_err());
        assert!(of(&[("SLURM_ARRAY_TASK_ID", "x"), ("SLURM_ARRAY_TASK_COUNT", "4")]).is_err());
        let pod = [("JOB_COMPLETION_INDEX", "0"), ("VOCE_SHARDS", "8")];
        assert_eq!(of(&pod), Ok(Shard { index: 0, count: 8 }));
        assert_eq!(of(&pod[..1]), Err(ShardError::NoCount("0".into())));
    }
}
