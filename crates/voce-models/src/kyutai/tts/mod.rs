//! Kyutai's models that speak: text that is fed in as the model asks for it, codes that follow some steps later.

mod machine;

pub use machine::{Entry, Machine, MachineRules, Taken};
