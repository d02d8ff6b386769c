//! The rows of a benchmark: every shape with every method.

use burn::tensor::Device;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arguments::{Common, Problems};
use crate::results::{Refused, Results};
use crate::shape::Shape;
use crate::{Result, guarded};

/// Measures every shape (by default `shapes`) with every method, hands each row to `done`, and
/// writes the results after each, so that a run that is stopped leaves what it has. A row that
/// fails is listed as refused.
///
/// # Errors
/// Those of [`Results::write`].
pub fn measure_all<R: Serialize + DeserializeOwned>(
    mut results: Results<R>,
    (common, problems): (&Common, &Problems),
    shapes: &[Shape],
    device: &Device,
    measure: impl Fn(&str, Shape) -> Result<R>,
    done: impl Fn(&mut R),
) -> Result<()> {
    let folder = common.out.as_deref();
    for shape in problems.shapes_or(shapes) {
        for name in &problems.methods {
            match guarded(|| measure(name, shape)) {
                Ok(mut row) => {
                    done(&mut row);
                    results.rows.push(row);
                }
                Err(error) => {
                    eprintln!("{name} {shape}: {error}");
                    results.refused.push(Refused {
                        name: name.clone(),
                        shape,
                        reason: error.to_string(),
                    });
                }
            }
            results.write(folder)?;
            device.memory_cleanup();
        }
    }
    println!("{}", results.write(folder)?.display());
    Ok(())
}
