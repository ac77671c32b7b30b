/** What the sidebar (or any other host) needs to show the dashboard. */

export type { StreamStats } from './accounts.js';
export { onCellDashboard } from './cell.js';
export { uuid, type KernelLike } from './channel.js';
export type { ChartDocument } from './commands.js';
export type { Connection, ConnectionState } from './connection.js';
export { mountDashboard, type DashboardOptions, type MountedDashboard } from './dashboard.js';
export { download } from './dom.js';
export type { DashboardElement, MonitorHandle } from './handle.js';
export { glanceParts, type Glance, type GlancePart } from './glance.js';
export { GlanceSource, type GlanceState } from './glancesource.js';
export { KernelSource, type KernelSourceOptions } from './kernel.js';
export { recordingText } from './recording.js';
export { RecordedSource, type RecordedPlace } from './recorded.js';
export { entryText, moment, type Recorded, type SessionEntry } from './sessions.js';
export type { ChartChoice, Changes, Recording, Settings } from './settings.js';
export type { MonitorSource } from './source.js';
export * from './wire.js';
