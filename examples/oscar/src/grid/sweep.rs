//! Lists of settings and their combinations.

use std::{path::PathBuf, slice};

use serde::Deserialize;

use super::SideChange;

/// A value, or a list of values to try.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    /// A list; an empty one leaves the setting as the preset has it.
    Many(Vec<T>),
    /// One value.
    One(T),
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> From<Vec<T>> for OneOrMany<T> {
    fn from(values: Vec<T>) -> Self {
        Self::Many(values)
    }
}

impl<T: Clone> OneOrMany<T> {
    /// The values.
    pub fn values(&self) -> &[T] {
        match self {
            Self::One(value) => slice::from_ref(value),
            Self::Many(values) => values,
        }
    }

    /// The values in place.
    pub fn iter_mut(&mut self) -> slice::IterMut<'_, T> {
        match self {
            Self::One(value) => slice::from_mut(value).iter_mut(),
            Self::Many(values) => values.iter_mut(),
        }
    }

    /// Every value, or one `None`.
    fn choices(&self) -> Vec<Option<T>> {
        match self.values() {
            [] => vec![None],
            values => values.iter().cloned().map(Some).collect(),
        }
    }
}

/// One or more methods, with lists of which every combination is measured.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Names of presets.
    pub name: OneOrMany<String>,
    /// Pairs of [sink tokens, recent tokens].
    #[serde(default)]
    pub windows: OneOrMany<[usize; 2]>,
    /// Bits of both sides: 2, 4 or 8.
    #[serde(default)]
    pub bits: OneOrMany<u8>,
    /// Elements that share parameters, where the method has groups.
    #[serde(default)]
    pub group: OneOrMany<usize>,
    /// Whether the means of pages are removed, where the method does so; `false` goes with artifacts
    /// that have means.
    #[serde(default)]
    pub page_means: OneOrMany<bool>,
    /// Artifacts of a calibrated method; methods that are not calibrated take none.
    #[serde(default)]
    pub calibration: OneOrMany<PathBuf>,
    /// Changes to the keys.
    #[serde(default)]
    pub key: OneOrMany<SideChange>,
    /// Changes to the values.
    #[serde(default)]
    pub value: OneOrMany<SideChange>,
    /// What tables call it, instead of its settings.
    #[serde(default)]
    pub label: Option<String>,
}

/// One combination.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    pub name: String,
    pub windows: Option<[usize; 2]>,
    pub bits: Option<u8>,
    pub group: Option<usize>,
    pub page_means: Option<bool>,
    pub calibration: Option<PathBuf>,
    pub key: SideChange,
    pub value: SideChange,
    pub label: Option<String>,
}

impl Sweep {
    /// All combinations, the last list changing fastest.
    pub fn settings(&self) -> Vec<Setting> {
        let first = self.name.values().iter().map(|name| Setting {
            name: name.clone(),
            label: self.label.clone(),
            ..Setting::default()
        });
        let settings = first.collect();
        let settings = combine(settings, &self.calibration, |s, v| s.calibration = v);
        let settings = combine(settings, &self.windows, |s, v| s.windows = v);
        let settings = combine(settings, &self.bits, |s, v| s.bits = v);
        let settings = combine(settings, &self.group, |s, v| s.group = v);
        let settings = combine(settings, &self.page_means, |s, v| s.page_means = v);
        let settings = combine(settings, &self.key, |s, v| s.key = v.unwrap_or_default());
        combine(settings, &self.value, |s, v| {
            s.value = v.unwrap_or_default()
        })
    }
}

fn combine<T: Clone>(
    settings: Vec<Setting>,
    values: &OneOrMany<T>,
    set: impl Fn(&mut Setting, Option<T>),
) -> Vec<Setting> {
    let with = |setting: &Setting, value: Option<T>| {
        let mut setting = setting.clone();
        set(&mut setting, value);
        setting
    };
    settings
        .iter()
        .flat_map(|setting| {
            let choices = values.choices().into_iter();
            choices.map(move |value| (setting, value))
        })
        .map(|(setting, value)| with(setting, value))
        .collect()
}
