//! stub
/// stub
#[derive(Clone, Debug)]
pub struct Calibration;
impl Calibration {
    /// stub
    pub fn method(&self) -> &str {
        "oscar"
    }
    /// stub
    pub fn adjust(&self, _k: &mut crate::method::Side, _v: &mut crate::method::Side) {}
}
